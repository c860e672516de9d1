"""What the readers of Codex's and OpenCode's streams share: lines to events, calls, and a transcript."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_studyminimal.protocol.records import ToolCall, Transcript, Usage
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.transports.stream import EventError, event_of, word_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

    from pytest_studyminimal.protocol.arms import Arm
    from pytest_studyminimal.protocol.records import AgentFacts, Block
    from pytest_studyminimal.transports.process import Ended

UNKNOWN_TOOL = "(unknown tool)"
_MOST_NAMES = 40
_MOST_PROBLEMS = 20
_MOST_CALLS = 10_000


@dataclass
class Reading:
    """One stream so far. `hide` is applied to every word before it may become public.

    `offered` are the names of the arm's tools, None where no arm is known: any name may be shown then.
    """

    transport: ClassVar[str] = ""
    hide: Callable[[str], str] = str
    offered: tuple[str, ...] | None = None
    started: bool = False
    results: int = 0
    text: str = ""
    block: Block | None = None
    problems: list[str] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    _lines: int = 0
    _calls: dict[str, ToolCall] = field(default_factory=dict)

    def take(self, line: bytes) -> None:
        """Read one line; an empty one is no event."""
        self._lines += 1
        if not line.strip():
            return
        try:
            event = event_of(line)
        except EventError as error:
            self.problem(str(error))
            return
        self.read(self.word(event.get("type"), 64) or "(no type)", event)

    def read(self, name: str, event: dict[str, Any]) -> None:
        """Take one event by its name."""
        raise NotImplementedError

    def count(self, name: str) -> None:
        """Count an event that nobody knows."""
        known = name in self.unknown or len(self.unknown) < _MOST_NAMES
        self.unknown[name if known else "(others)"] += 1

    def problem(self, what: str) -> None:
        """Note what cannot be read at this line."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"line {self._lines} is {what}")

    def word(self, value: object, limit: int = 128) -> str | None:
        """Return a text as it may be shown, None for all that is no text."""
        return word_of(self.hide(value), limit) if isinstance(value, str) else None

    def call(self, key: str, name: str, *, is_error: bool, server: object = None) -> None:
        """Note a call, or what became of one that was noted before."""
        if key not in self._calls and len(self._calls) >= _MOST_CALLS:
            return
        is_offered = self.offered is None or name in self.offered
        self._calls[key] = ToolCall(
            name=(self.word(name) or UNKNOWN_TOOL) if is_offered else UNKNOWN_TOOL,
            server=server if isinstance(server, str) and is_offered else None,
            is_error=is_error,
            refused=not is_offered,
        )

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Every call seen, once, in order."""
        return tuple(self._calls.values())

    @property
    def is_over(self) -> bool:
        """Whether the stream came to an end of its own."""
        raise NotImplementedError

    @property
    def turns(self) -> int:
        """How many turns or steps ended."""
        raise NotImplementedError

    @property
    def answer(self) -> str:
        """The final answer; "" where there is none."""
        raise NotImplementedError

    @property
    def answer_is_cut(self) -> bool:
        """Whether the model was cut off in its answer."""
        return False

    def usage(self) -> Usage | None:
        """Return the usage of all of it, None where a part was not told."""
        raise NotImplementedError

    def partial_usage(self) -> Usage:
        """Return what is known of it all the same."""
        raise NotImplementedError

    def partial_costs_usd(self) -> tuple[Decimal, ...]:
        """Return costs that are known to be less than the whole."""
        return ()

    def facts(self) -> AgentFacts:
        """Return what is public of the stream itself."""
        raise NotImplementedError

    def transcript(
        self, ended: Ended, arm: Arm | None, *, startup_s: float | None = None
    ) -> Transcript:
        """Return what the stream and the end of its process say, normalised and unjudged."""
        usage, answer = self.usage(), self.hide(self.answer)
        end = {
            "exit_status": ended.exit_status,
            "stayed": ended.stayed,
            "cut": ended.cut,
            "startup_s": startup_s,
        }
        called = tuple(dict.fromkeys(call.name for call in self.tool_calls))
        stream = ended.stdout.decode("utf-8", "surrogateescape")
        return Transcript(
            transport=self.transport,
            ending=ended.ending,
            # What was offered is not told: the plan stands in, and `unstated` says so.
            offered_tools=called if arm is None else arm.offered,
            turns=self.turns,
            requests=self.turns,
            tool_calls=self.tool_calls,
            usage=self.partial_usage() if usage is None else usage,
            usage_complete=usage is not None,
            more_costs_usd=self.partial_costs_usd(),
            largest_prompt_tokens=None,
            answer=answer.encode("utf-8", "replace").decode(),
            answer_complete=bool(answer.strip()) and not self.answer_is_cut,
            stop_reason=one_line("length", 64) if self.answer_is_cut else None,
            wall_s=ended.wall_s,
            agent=self.facts().model_copy(update=end),
            stream=self.hide(stream).encode("utf-8", "surrogateescape"),
            stderr=self.hide(ended.stderr),
        )
