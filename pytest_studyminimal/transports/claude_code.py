"""Claude Code without a terminal: one fresh process for each attempt."""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import BudgetRefusedError, RunStoppedError
from pytest_studyminimal.protocol.records import Transcript
from pytest_studyminimal.protocol.rules import is_dated
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.transports import Transport
from pytest_studyminimal.transports.claude_arguments import Order, arguments, arm_of
from pytest_studyminimal.transports.claude_events import ClaudeEvents
from pytest_studyminimal.transports.process import AgentProcess, Ended, NotStartedError
from pytest_studyminimal.workspace.hiding import Scrubber

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pytest_studyminimal.protocol.arms import Arm
    from pytest_studyminimal.transports import Assignment, Meter
    from pytest_studyminimal.workspace.workplace import Workplace

NAME = "claude-code"

SWITCHES = {"CLAUDE_CODE_MAX_RETRIES": "0", "DISABLE_AUTOUPDATER": "1"}
"""What we set in the CLI's environment: no retries of its own, and the pinned build stays."""


@dataclass(frozen=True)
class ClaudeCode(Transport["Workplace"]):
    """The pinned CLI at `program`, with a whole environment of its own.

    `secrets` are values hidden in all that is kept. With `private_home` every attempt has a fresh
    and empty home directory, which a rehearsal needs.
    """

    program: Path
    env: Mapping[str, str] = field(repr=False)
    alias: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)
    private_home: bool = False

    def arm(self, tools: Workplace) -> Arm:
        """See `transports.Transport`."""
        return arm_of(tools.tools, tools.allowed)

    def carry(self, assignment: Assignment, tools: Workplace, meter: Meter) -> Transcript:
        """Run one attempt to its end; its whole budget is reserved before the process starts."""
        arm = self.arm(tools)
        nothing = Transcript(transport=NAME, ending="budget", offered_tools=arm.offered)
        try:
            meter.reserve_attempt()
        except (BudgetRefusedError, RunStoppedError) as refusal:
            return nothing.model_copy(update={"problem": str(refusal)})
        order = Order(
            model=assignment.model,
            question=assignment.question,
            system=assignment.system,
            limit_usd=assignment.attempt_usd,
            arm=arm,
            denied=tools.denied,
            commands=tools.commands,
        )
        hide = Scrubber(self.secrets)
        events = events_for(assignment.model, arm, alias=self.alias, hide=hide)
        watched = _Watched(events, hide, meter.keep)
        try:
            ended = self._run(order, assignment, tools, watched)
        except NotStartedError as error:
            problem = f"the CLI could not be started: {error}"
            unstarted = {"ending": "transport", "problem": problem, "usage_complete": False}
            return nothing.model_copy(update=unstarted)
        return transcript(
            watched.events, ended, arm, hide=watched.hide, startup_s=watched.startup_s
        )

    def _run(
        self, order: Order, assignment: Assignment, tools: Workplace, watched: _Watched
    ) -> Ended:
        with self._environment() as env:
            watched.begins()
            return AgentProcess(
                argv=[str(self.program), *arguments(order)],
                cwd=tools.cwd,
                env=env,
                deadline_s=assignment.deadline_s,
                most_bytes=assignment.stdout_bytes,
                take=watched.take,
                done=lambda: watched.events.results > 0,
            ).run()

    @contextlib.contextmanager
    def _environment(self) -> Iterator[Mapping[str, str]]:
        if not self.private_home:
            yield self.env
            return
        with tempfile.TemporaryDirectory(
            prefix="studyminimal-home-", ignore_cleanup_errors=True
        ) as home:
            yield {**self.env, "HOME": home}


class _Watched:
    """The events of one process, and when the first of them came."""

    def __init__(self, events: ClaudeEvents, hide: Scrubber, keep: Callable[[bytes], None]) -> None:
        self.hide = hide
        self.events = events
        self._keep = keep
        self.startup_s: float | None = None
        self._began = 0.0

    def begins(self) -> None:
        self._began = time.monotonic()

    def take(self, line: bytes) -> None:
        self.events.take(line)
        text = line.decode("utf-8", "surrogateescape")
        self._keep(self.hide(text).encode("utf-8", "surrogateescape"))
        if self.events.started and self.startup_s is None:
            self.startup_s = round(time.monotonic() - self._began, 3)


def events_for(model: str, arm: Arm, *, alias: bool, hide: Scrubber | None = None) -> ClaudeEvents:
    """Return an empty reader for a stream of a study's model in an arm."""
    return ClaudeEvents(
        is_study_model=lambda seen: seen == model or is_dated(seen, model, alias=alias),
        hide=hide or str,
        offered=arm.offered,
    )


def transcript(
    events: ClaudeEvents,
    ended: Ended,
    arm: Arm,
    *,
    hide: Scrubber | None = None,
    startup_s: float | None = None,
) -> Transcript:
    """Return what a stream and the end of its process say, normalised and unjudged."""
    bill = events.bill()
    usage = bill.usage if bill else None
    facts = events.facts().model_copy(
        update={
            "exit_status": ended.exit_status,
            "stayed": ended.stayed,
            "cut": ended.cut,
            "startup_s": startup_s,
        }
    )
    clean = (lambda text: text) if hide is None else hide
    answer = clean(events.answer)
    stop_reason = events.last.get("stop_reason")
    stream = ended.stdout.decode("utf-8", "surrogateescape")
    return Transcript(
        transport=NAME,
        ending=ended.ending,
        models=events.models(),
        offered_tools=facts.tools if events.started else arm.offered,
        turns=events.messages if facts.num_turns is None else facts.num_turns,
        requests=events.messages,
        tool_calls=events.tool_calls(arm.server_of),
        usage=events.partial_usage() if usage is None else usage,
        usage_complete=usage is not None,
        more_usages=events.more_usages(),
        more_costs_usd=events.more_costs_usd(),
        largest_prompt_tokens=events.largest_prompt_tokens(),
        stop_reason=one_line(clean(stop_reason), 64) if isinstance(stop_reason, str) else None,
        answer=answer,
        answer_complete=bool(answer.strip()),
        wall_s=ended.wall_s,
        agent=facts,
        stream=clean(stream).encode("utf-8", "surrogateescape"),
        stderr=clean(ended.stderr),
    )
