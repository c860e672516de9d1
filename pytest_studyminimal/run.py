"""`Run.attempt`: the one path on which money is spent."""

from __future__ import annotations

import contextlib
import hashlib
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pytest_studyminimal.evidence.files import append_privately
from pytest_studyminimal.evidence.sessions import lost
from pytest_studyminimal.evidence.streams import keep_line, keep_stream
from pytest_studyminimal.evidence.uninterrupted import interrupts_wait
from pytest_studyminimal.protocol import money, prices
from pytest_studyminimal.protocol.errors import (
    AlreadyStartedError,
    AttemptBudgetError,
    LedgerError,
    RunStoppedError,
)
from pytest_studyminimal.protocol.records import (
    Attempt,
    Judgement,
    Observation,
    Status,
    Transcript,
    Usage,
)
from pytest_studyminimal.protocol.rules import Facts, judge
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.transports import Assignment

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

    from pytest_studyminimal.evidence.budget import Budget, Charged
    from pytest_studyminimal.evidence.ledger import Ledger
    from pytest_studyminimal.evidence.records import Record
    from pytest_studyminimal.protocol.arms import Arm
    from pytest_studyminimal.protocol.prices import Computed
    from pytest_studyminimal.protocol.study import Connection, Prices, Study, Tier
    from pytest_studyminimal.transports import Transport


UNKNOWN_TOOL = "(unknown)"
COST_RULE = (
    "charged: the larger of reported and computed cost where completed, else at least the reservation;"
    f" both agree within a factor of {prices.AGREEMENT}; the tier by the largest single prompt; cache"
    " writes not attributed to five minutes at the one-hour rate"
)


class Reader(Protocol):
    """Who reads answers that must have a form, such as verdicts, and keeps what they say."""

    def problem(self, attempt: Attempt, seen: Transcript) -> str | None:
        """Return as one public line what is wrong with an answer, None where it can be kept."""

    def keep(self, ledger: Ledger, attempt: Attempt, answer: str, problem: str | None) -> None:
        """Append what an answer says, inside the transaction that records its attempt."""


@dataclass(frozen=True)
class Terms:
    """What was decided before the first attempt and holds for every one of a run."""

    study: Study
    connection: Connection
    upper: Tier
    attempt_usd: Decimal
    series: str
    rehearsal: bool
    reader: Reader | None = None

    def assignment(self, attempt: Attempt) -> Assignment:
        """Return what a transport carries for an attempt."""
        study, limits = self.study, self.study.limits
        return Assignment(
            model=self.connection.model,
            question=study.task(attempt.task).question,
            system=study.prompt.system,
            turns=limits.turns,
            output_tokens=limits.output_tokens,
            tools_per_turn=limits.tools_per_turn,
            deadline_s=limits.deadline_s,
            tool_s=limits.tool_s,
            stdout_bytes=limits.stdout_bytes,
            attempt_usd=self.attempt_usd,
        )


class Checked(Protocol):
    """An export, and a checkout beside it, that can say what was done to them."""

    def changes(self) -> tuple[str, ...]:
        """Return what differs from the corpus, one short line each."""

    def index_sha256(self) -> str | None:
        """Return the hash of what a server may write in a checkout, None where there is none."""


@dataclass
class Run:
    """One session in the ledger, usable from each of its processes; opened once, never reopened."""

    id: str
    terms: Terms
    ledger: Ledger
    budget: Budget
    transport: Transport[Any]
    on_progress: Callable[[Attempt, Decimal], None] = lambda _attempt, _usd: None
    _broken: str | None = field(default=None, repr=False)

    def progress(self, attempt: Attempt, charged_usd: Decimal) -> None:
        """Tell whoever shows it; whatever goes wrong there is not the attempt's."""
        with contextlib.suppress(Exception):
            self.on_progress(attempt, charged_usd)

    def row(self) -> Record:
        """Return the record that opened this run."""
        return self.ledger.records(run=self.id, kind="run")[0]

    def admit(self, attempt: Attempt, first_request_bytes: int | None) -> None:
        """Refuse, before anything is prepared, what could not be started.

        Without a number of bytes the whole attempt is what will be reserved first. Raises
        RunStoppedError, AlreadyStartedError or BudgetRefusedError; nothing is written.
        """
        self._refuse_broken()
        needed = self.terms.attempt_usd
        if first_request_bytes is not None:
            needed = prices.reservation(
                self.terms.upper,
                request_bytes=first_request_bytes,
                output_tokens=self.terms.study.limits.output_tokens,
            )
        self.budget.admit(attempt.id, needed)

    def _refuse_broken(self) -> None:
        if self._broken is not None:
            raise RunStoppedError(f"the run stopped: {self._broken}")

    def attempt(self, attempt: Attempt, export: Checked, tools: Any) -> Observation:
        """Run one attempt, once: reserve, carry, judge, settle, append.

        `tools` are what the transport gives to its agent: a toolbox or a workplace.

        Whatever happens, what was spent is in the ledger when this returns or raises. Raises
        AlreadyStartedError or RunStoppedError before anything is spent, LedgerError where the ledger
        failed, and KeyboardInterrupt after the interrupted attempt was recorded.
        """
        self._refuse_broken()
        arm = self.transport.arm(tools)
        meter = _Meter(self, attempt)
        try:
            self.budget.start(attempt.id)
            transcript, cut = self._carry(attempt, tools, arm, meter)
            with interrupts_wait():
                noise = getattr(tools, "noise_lines", {})
                observation = self._record(attempt, transcript, export, arm, meter, noise)
        except (AlreadyStartedError, RunStoppedError):
            raise
        except BaseException as error:
            self._give_up(attempt, type(error).__name__)
            raise
        if cut is not None:
            raise cut
        return observation

    def _give_up(self, attempt: Attempt, why: str) -> None:
        # Without a working ledger nothing may follow, not even where the disk comes back.
        self._broken = f"{attempt.id}: {why}"
        with contextlib.suppress(LedgerError), self.ledger.transaction():
            if self.ledger.has("start", run=self.id, attempt=attempt.id) and not self.ledger.has(
                "observation", run=self.id, attempt=attempt.id
            ):
                observation = lost(self.row(), attempt.id, self.budget, f"internal error: {why}")
                self.budget.observe_inside(observation, {})

    def _carry(
        self, attempt: Attempt, tools: Any, arm: Arm, meter: _Meter
    ) -> tuple[Transcript, BaseException | None]:
        """Return what was seen, and what must be raised once it is recorded."""
        nothing = Transcript(
            transport=self.terms.connection.transport,
            ending="interrupted",
            offered_tools=arm.offered,
            usage_complete=False,
        )
        try:
            transcript = self.transport.carry(self.terms.assignment(attempt), tools, meter)
        except LedgerError:
            raise
        except KeyboardInterrupt as interrupt:
            return nothing, interrupt
        except BaseException as error:  # noqa: BLE001 - an attempt is recorded whatever went wrong
            self.log_privately(attempt.id, traceback.format_exc())
            inside = isinstance(error, Exception)
            what = "internal error" if inside else "ended from outside"
            problem = f"{what}: {type(error).__name__} (see the private log)"
            seen = nothing.model_copy(update={"ending": "transport", "problem": problem})
            return seen, None if inside else error
        interrupted = transcript.ending == "interrupted"
        return transcript, KeyboardInterrupt() if interrupted else None

    def _record(
        self,
        attempt: Attempt,
        transcript: Transcript,
        export: Checked,
        arm: Arm,
        meter: _Meter,
        noise: dict[str, int],
    ) -> Observation:
        terms = self.terms
        computed = prices.list_price(
            terms.study.prices, transcript.usage, transcript.largest_prompt_tokens
        )
        costs, more = known_costs(transcript, terms.study.prices)
        meter.cost(costs)
        changes, index = self._looked_at(attempt, export)
        malformed = terms.reader.problem(attempt, transcript) if terms.reader else None
        facts = facts_of(
            terms.study,
            terms.connection,
            arm,
            computed_usd=computed.usd if transcript.usage_complete else None,
            overshoot_usd=meter.overshoot_usd,
            export_changes=changes,
            answer_problem=malformed,
        )
        judgement = judge(transcript, facts)
        keep_stream(self.ledger.directory, self.id, attempt.id, transcript)
        with self.ledger.transaction():
            meter.settle_attempt(judgement.status, costs, more)
            # Whatever a transport left open stays charged in full.
            charged = self.budget.retain_open(attempt.id)
            seen = (transcript, computed, judgement)
            observation = self._observation(attempt, seen, arm, charged, noise)
            observation = observation.model_copy(update={"index_sha256": index})
            self.budget.observe_inside(
                observation, {"answer": transcript.answer}, stops=judgement.stops
            )
            if terms.reader is not None and not judgement.stops:
                terms.reader.keep(self.ledger, attempt, transcript.answer, malformed)
        return observation

    def _looked_at(self, attempt: Attempt, export: Checked) -> tuple[tuple[str, ...], str | None]:
        try:
            return export.changes(), export.index_sha256()
        except Exception:  # noqa: BLE001 - what cannot be checked is not known to be unchanged
            self.log_privately(attempt.id, traceback.format_exc())
            return ("it could not be checked",), None

    def _observation(
        self,
        attempt: Attempt,
        judged: tuple[Transcript, Computed, Judgement],
        arm: Arm,
        charged: Charged,
        noise: dict[str, int],
    ) -> Observation:
        seen, computed, judgement = judged
        agent = seen.agent
        complete = seen.usage_complete and (charged.measured or agent is not None)
        # A name that was not offered is the model's own text, which may be anything.
        named = [
            (call.name if call.name in arm.offered else UNKNOWN_TOOL, call.is_error)
            for call in seen.tool_calls
        ]
        balance = self.budget.balance()
        return Observation(
            attempt=attempt,
            status=judgement.status,
            reason=judgement.reason and one_line(judgement.reason),
            problems=tuple(one_line(problem) for problem in judgement.problems),
            transport=seen.transport,
            model=self.terms.connection.model,
            models_seen=tuple(one_line(model, 200) for model in seen.models),
            turns=seen.turns,
            requests=seen.requests,
            tool_calls=len(seen.tool_calls),
            tool_calls_by_name=dict(Counter(name for name, _ in named)),
            tool_errors_by_name=dict(Counter(name for name, is_error in named if is_error)),
            tool_results_cut=sum(call.original_bytes is not None for call in seen.tool_calls),
            cut_results_original_bytes=tuple(
                call.original_bytes for call in seen.tool_calls if call.original_bytes is not None
            ),
            server_noise_lines=noise,
            offered_tools=seen.offered_tools,
            usage=seen.usage,
            usage_complete=complete,
            charged_usd=charged.usd,
            computed_cost_usd=computed.usd if complete else None,
            cost_basis=computed.basis if complete else None,
            stop_reason=seen.stop_reason and one_line(seen.stop_reason, 64),
            answer_complete=seen.answer_complete and judgement.status == "completed",
            answer_sha256=hashlib.sha256(seen.answer.encode()).hexdigest(),
            wall_s=round(seen.wall_s, 3),
            rehearsal=self.terms.rehearsal,
            cumulative_cap_exceeded=balance.committed_usd > self.budget.cap_usd(),
            reported_cost_usd=agent.reported_cost_usd if agent else None,
            expected_version=self.terms.connection.version if agent else None,
            attempt_budget_usd=self.terms.attempt_usd if agent else None,
            agent=agent,
        )

    def unprepared(self, attempt: Attempt, status: Status, reason: str) -> Observation:
        """Record an attempt that was never started because its preparation failed or was refused."""
        observation = Observation(
            attempt=attempt,
            status=status,
            reason=one_line(reason),
            problems=(f"{status}: {one_line(reason)}",),
            transport=self.terms.connection.transport,
            model=self.terms.connection.model,
            charged_usd=money.ZERO,
            rehearsal=self.terms.rehearsal,
        )
        self.budget.observe(observation, {})
        return observation

    def close(self, reason: str) -> None:
        """Close the run for good; what was not reached stays blocked."""
        with self.ledger.transaction():
            if not self.ledger.has("close", run=self.id):
                self.ledger.append(
                    "close", account=self.budget.account, run=self.id, body={"reason": reason}
                )

    def log_privately(self, what: str, text: str) -> None:
        """Append to the run's private log, under an attempt's id or other words, what may be private."""
        with contextlib.suppress(OSError):
            log = self.ledger.directory / f"run-{self.id}.log"
            append_privately(log, f"{what}\n{text}\n")


def facts_of(
    study: Study,
    connection: Connection,
    arm: Arm,
    *,
    computed_usd: Decimal | None,
    overshoot_usd: Decimal,
    export_changes: tuple[str, ...] = (),
    answer_problem: str | None = None,
) -> Facts:
    """Return what the rule book needs beside a transcript."""
    return Facts(
        model=connection.model,
        alias=connection.alias,
        deadline_s=study.limits.deadline_s,
        offered_tools=arm.offered,
        export_changes=export_changes,
        overshoot_usd=overshoot_usd,
        version=connection.version if connection.is_agent else None,
        servers=arm.servers,
        builtin_tools=arm.builtin,
        computed_usd=computed_usd,
        answer_problem=answer_problem,
    )


Costs = tuple["Decimal", ...]


def known_costs(transcript: Transcript, table: Prices) -> tuple[Costs, Costs]:
    """Return the costs of an agent's attempt in dollars: reported and computed, and all others known.

    The others are lower bounds, or costs of other results: they count where the attempt is not valid.
    """
    if transcript.agent is None:
        return (), ()
    largest = transcript.largest_prompt_tokens
    computed = prices.list_price(table, transcript.usage, largest).usd
    reported = transcript.agent.reported_cost_usd
    others = [prices.list_price(table, usage, largest).usd for usage in transcript.more_usages]
    costs = (computed,) if reported is None else (reported, computed)
    return costs, (*others, *transcript.more_costs_usd)


def charge(status: Status, reserved_usd: Decimal, costs: Costs, more: Costs = ()) -> Decimal:
    """Return what an agent's attempt is charged: never less than a cost that is known (protocol: budget).

    A completed one costs the larger of reported and computed; any other at least its reservation and
    every other cost that is known.
    """
    if status == "completed":
        return max(costs, default=money.ZERO)
    return max((reserved_usd, *costs, *more))


class _Meter:
    """Reserves and settles the paid calls of one attempt, and keeps within the attempt's own cap."""

    def __init__(self, run: Run, attempt: Attempt) -> None:
        self._run = run
        self._attempt = attempt
        self._open: tuple[int, Decimal] | None = None
        self._whole: tuple[int, Decimal] | None = None
        self.charged_usd = money.ZERO
        self.overshoot_usd = money.ZERO

    def reserve(self, *, request_bytes: int, output_tokens: int) -> None:
        """See `transports.Meter`."""
        assert self._open is None, "one paid call at a time"
        needed = prices.reservation(
            self._run.terms.upper, request_bytes=request_bytes, output_tokens=output_tokens
        )
        self._refuse_beyond_attempt(needed)
        self._run.progress(self._attempt, self.charged_usd)
        with interrupts_wait():
            self._open = (self._run.budget.reserve(self._attempt.id, needed), needed)

    def reserve_attempt(self) -> None:
        """See `transports.Meter`."""
        assert self._whole is None, "one process per attempt"
        usd = self._run.terms.attempt_usd
        self._run.progress(self._attempt, money.ZERO)
        with interrupts_wait():
            self._whole = (self._run.budget.reserve(self._attempt.id, usd), usd)

    def keep(self, line: bytes) -> None:
        """See `transports.Meter`."""
        keep_line(self._run.ledger.directory, self._run.id, self._attempt.id, line)

    def cost(self, costs: Costs) -> None:
        """Learn what a whole attempt cost."""
        if self._whole is not None:
            excess = money.subtract(max(costs, default=money.ZERO), self._whole[1])
            self.overshoot_usd = max(excess, money.ZERO)

    def settle_attempt(self, status: Status, costs: Costs, more: Costs) -> None:
        """Settle a whole attempt by its verdict, inside a transaction."""
        if self._whole is None:
            return
        reservation, reserved = self._whole
        charged = charge(status, reserved, costs, more)
        measured = status == "completed" or charged > reserved
        self._run.budget.settle_inside(reservation, charged, measured=measured)

    def _refuse_beyond_attempt(self, needed: Decimal) -> None:
        cap = self._run.terms.attempt_usd
        if self.overshoot_usd > 0:
            raise AttemptBudgetError("a call cost more than was reserved for it")
        if money.add(self.charged_usd, needed) > cap:
            raise AttemptBudgetError(
                f"attempt budget: cap {money.text(cap)} USD, spent {money.text(self.charged_usd)},"
                f" needed {money.text(needed)}"
            )

    def settle(self, usage: Usage) -> None:
        """See `transports.Meter`."""
        self._close(prices.price(usage, self._run.terms.upper), measured=True)

    def retain(self) -> None:
        """See `transports.Meter`."""
        assert self._open is not None, "there is an open reservation to retain"
        self._close(self._open[1], measured=False)

    def _close(self, charged: Decimal, *, measured: bool) -> None:
        assert self._open is not None, "there is an open reservation to settle"
        reservation, reserved = self._open
        with interrupts_wait():
            self._run.budget.settle(reservation, charged, measured=measured)
            self._open = None
            self.charged_usd = money.add(self.charged_usd, charged)
            excess = money.subtract(charged, reserved)
            self.overshoot_usd = money.add(self.overshoot_usd, max(excess, money.ZERO))
        self._run.progress(self._attempt, self.charged_usd)
