"""The reader of each agent's stream, by transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_studyminimal.transports.codex_events import CodexEvents
from pytest_studyminimal.transports.opencode_events import OpenCodeEvents

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_studyminimal.transports.reading import Reading

ALONE = ("codex", "opencode")
"""The transports whose streams can be read without a study: nothing of a plan stands in them."""


def reader_of(
    transport: str,
    *,
    hide: Callable[[str], str] = str,
    offered: tuple[str, ...] | None = None,
) -> Reading:
    """Return an empty reader for a stream of `codex` or `opencode`."""
    if transport == "codex":
        return CodexEvents(hide=hide, offered=offered)
    assert transport == "opencode"
    return OpenCodeEvents(hide=hide, offered=offered)
