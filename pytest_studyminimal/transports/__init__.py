"""How a prompt reaches an agent: a transport translates; it never judges, prices or charges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_studyminimal.protocol.records import (
    ToolCall,
    ToolDefinition,
    ToolResult,
    Transcript,
    Usage,
)

if TYPE_CHECKING:
    from decimal import Decimal

    from pytest_studyminimal.protocol.arms import Arm


class Meter(Protocol):
    """What a transport tells about paid calls; the run behind it reserves and settles."""

    def reserve(self, *, request_bytes: int, output_tokens: int) -> None:
        """Make one paid call possible: its reservation is on disk when this returns.

        Raises BudgetRefusedError, AttemptBudgetError, RunStoppedError or LedgerError; then the call
        must not be sent.
        """

    def reserve_attempt(self) -> None:
        """Reserve the whole budget of the attempt, once; the run settles it after the judgement.

        Raises BudgetRefusedError, RunStoppedError or LedgerError; then nothing may be started.
        """

    def keep(self, line: bytes) -> None:
        """Keep a line of an agent's output at once, secrets hidden, for whoever finds a dead session."""

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
    stdout_bytes: int
    attempt_usd: Decimal


Tools_contra = TypeVar("Tools_contra", contravariant=True)


class Transport(Protocol[Tools_contra]):
    """One route to an agent; `tools` are what its attempts are given, a toolbox or a workplace."""

    def arm(self, tools: Tools_contra) -> Arm:
        """Return what the agent must be offered, name by name."""

    def carry(self, assignment: Assignment, tools: Tools_contra, meter: Meter) -> Transcript:
        """Run one attempt to its end and return what was seen; KeyboardInterrupt is an ending too."""


__all__ = ["Assignment", "Meter", "ToolCall", "Toolbox", "Transport"]
