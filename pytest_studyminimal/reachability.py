"""Whether an arm's server can lead an agent to each authoritative source; no agent is told.

Found out before any money by calling the allowed tools as an agent would: what reads is asked for
the source's path, what searches for the words of its name. A "no" says that the treatment cannot
help with that source, which is worth knowing before a null result is published.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_studyminimal.protocol.records import ToolDefinition, ToolResult

Reach = Literal["yes", "no", "unknown"]
_MOST_CALLS = 60


def reach(
    tools: tuple[ToolDefinition, ...],
    call: Callable[[str, dict[str, Any]], ToolResult | None],
    sources: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[Reach, ...]]:
    """Return for every task what is known of each of its sources, in their order.

    `call` returns None where the server no longer answers; from there on all is unknown.
    """
    prober = _Prober(tools, call)
    known: dict[str, Reach] = {}
    for path in dict.fromkeys(path for paths in sources.values() for path in paths):
        known[path] = prober.reaches(path)
    return {task: tuple(known[path] for path in paths) for task, paths in sources.items()}


class _Prober:
    def __init__(
        self,
        tools: tuple[ToolDefinition, ...],
        call: Callable[[str, dict[str, Any]], ToolResult | None],
    ) -> None:
        # Loaded only where servers are probed: it brings the local provider with it.
        from pytest_studyminimal.rehearsal.tools import ToolShelf  # noqa: PLC0415

        self._shelf = ToolShelf([tool.model_dump() for tool in tools])
        self._call = call
        self._left = _MOST_CALLS
        self._silent = not (self._shelf.readers or self._shelf.searchers)

    def reaches(self, path: str) -> Reach:
        readings = [(tool.name, tool.reading(path, None)) for tool in self._shelf.readers]
        if any(self._asked(*reading) for reading in readings):
            return "yes"
        words = re.sub(r"[^A-Za-z0-9]+", " ", PurePosixPath(path).stem).strip()
        for tool in self._shelf.searchers:
            queries = (words, *words.split()[:2]) if tool.is_literal else (words,)
            for query in queries:
                text = self._asked(tool.name, tool.asking(query)) if query else None
                if text and path in text:
                    return "yes"
        return "unknown" if self._silent else "no"

    def _asked(self, name: str, arguments: dict[str, Any]) -> str | None:
        if self._silent or self._left <= 0:
            self._silent = True
            return None
        self._left -= 1
        result = self._call(name, arguments)
        if result is None:
            self._silent = True
            return None
        return None if result.is_error else result.text
