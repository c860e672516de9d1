"""How a reply ends a conversation: one table of what the API may say.

An answer is the last reply's text. It is complete where the model ended its turn (`end_turn` or
`stop_sequence`) and said something. A reply that was cut (`max_tokens`, `refusal`,
`model_context_window_exceeded`), the turn limit and the tool limit are understood endings without
a complete answer; calls requested there are counted and not executed. Everything else breaks the
API's rules for a client without server tools: an unknown stop reason (also null and `pause_turn`),
`tool_use` without a call, a call without `tool_use`, a tool id used twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from pytest_studyminimal.protocol.records import Ending
    from pytest_studyminimal.transports import Assignment
    from pytest_studyminimal.transports.wire import Reply

_ENDED = frozenset({"end_turn", "stop_sequence"})
_CUT = frozenset({"max_tokens", "refusal", "model_context_window_exceeded"})


@dataclass(frozen=True)
class End:
    """How a conversation ended; `problem` is one public line."""

    ending: Ending
    problem: str | None = None
    answer_complete: bool = False


_ASKED_FOR = frozenset({"text", "tool_use", "thinking", "redacted_thinking"})


def broken_rule(reply: Reply, seen_ids: AbstractSet[str]) -> str | None:
    """Return the rule of the API that `reply` breaks; `seen_ids` are those of earlier replies."""
    stop, ids = reply.stop_reason, [use.id for use in reply.tool_uses]
    if len(set(ids)) < len(ids) or not seen_ids.isdisjoint(ids):
        return "a tool id was used twice"
    if any(block["type"] not in _ASKED_FOR for block in reply.content):
        return "content of a kind that was not asked for"
    if stop == "tool_use":
        return None if ids else "stop reason tool_use without a tool call"
    if stop is None:
        return "no stop reason that could be shown"
    if stop not in _ENDED | _CUT:
        return f"unknown stop reason {stop}"
    return f"a tool call with stop reason {stop}" if ids and stop in _ENDED else None


def end_of(reply: Reply, limits: Assignment, turn: int) -> End | None:
    """Return how a reply that breaks no rule ends turn `turn` (1-based); None to run its tools."""
    if reply.stop_reason in _CUT:
        return End("finished")
    if reply.stop_reason in _ENDED:
        return End("finished", answer_complete=bool(reply.text))
    wanted = len(reply.tool_uses)
    if wanted > limits.tools_per_turn:
        most = limits.tools_per_turn
        return End("finished", f"{wanted} tools requested in one turn, at most {most}")
    if turn >= limits.turns:
        return End("finished", f"turn limit {limits.turns} reached")
    return None
