"""What an arm must look like to the agent: the tools and servers that a run proves, name by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Arm:
    """The names offered to a model, in order, the servers behind some, and the agent's own tools."""

    offered: tuple[str, ...]
    server_tools: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    builtin: tuple[str, ...] = ()

    def server_of(self, name: str) -> str | None:
        """Return the server behind a name, None for the agent's own and for unknown tools."""
        return self.server_tools.get(name)
