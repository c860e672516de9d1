"""How a prompt reaches an agent: a transport translates; it never judges, prices or charges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from pytest_studyminimal.protocol.records import (
    ToolCall,
    ToolDefinition,
    ToolResult,
    Transcript,
    Usage,
)


class Meter(Protocol):
    """What a transport tells about paid calls; the run behind it reserves and settles."""

    def reserve(self, *, request_bytes: int, output_tokens: int) -> None:
        """Make one paid call possible: its reservation is on disk when this returns.

        Raises BudgetRefusedError, AttemptBudgetError, RunStoppedError or LedgerError; then the call
        must not be sent.
        """

    def settle(self, usage: Usage) -> None:
        """Settle the open reservation with the provider's measured usage of that call."""

    def retain(self) -> None:
        """Keep the open reservation charged: the response was lost or its usage is invalid."""


class Toolbox(Protocol):
    """The tools of one attempt under their wire names."""

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools offered to the model, in a fixed order."""

    def server_of(self, name: str) -> str | None:
        """The server behind a wire name, None for repository and unknown tools."""

    def call(self, name: str, arguments: dict[str, Any], *, timeout_s: float) -> ToolResult:
        """Run one offered tool; every failure of a tool is an error result, never an exception."""


@dataclass(frozen=True)
class Assignment:
    """What a transport carries: the prompt and the limits of one attempt."""

    model: str
    question: str
    system: str | None
    turns: int
    output_tokens: int
    tools_per_turn: int
    deadline_s: float
    tool_s: float


class Transport(Protocol):
    """One route to an agent."""

    def carry(self, assignment: Assignment, toolbox: Toolbox, meter: Meter) -> Transcript:
        """Run one attempt to its end and return what was seen; KeyboardInterrupt is an ending too."""


__all__ = ["Assignment", "Meter", "ToolCall", "Toolbox", "Transport"]
