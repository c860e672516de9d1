"""One run as the ledger holds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_studyminimal.evidence.budget import cap_of
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Attempt, Observation, Status

if TYPE_CHECKING:
    from decimal import Decimal

    from pytest_studyminimal.evidence.ledger import Ledger
    from pytest_studyminimal.evidence.records import Balance, Record

Shown = Status | Literal["open", "not selected"]


@dataclass(frozen=True)
class Line:
    """One planned attempt and what became of it; `observation` is None where it was not reached.

    Times are the ledger's own, ISO 8601 in UTC; None where there is no such record.
    """

    attempt: Attempt
    status: Shown
    observation: Observation | None
    started_at: str | None = None
    ended_at: str | None = None


@dataclass(frozen=True)
class RunView:
    """A run's opening record, its attempts in the planned order, its account, and its verdicts."""

    row: Record
    lines: tuple[Line, ...]
    stop: Record | None
    close: Record | None
    balance: Balance
    cap_usd: Decimal
    verdicts: tuple[Record, ...] = ()
    judged_usd: Decimal | None = None
    """What verdicts on this run were charged; None where no session was paid for one."""

    @property
    def selected(self) -> tuple[Line, ...]:
        """The attempts that this run was to make."""
        return tuple(line for line in self.lines if line.status != "not selected")

    @property
    def completed(self) -> bool:
        """Whether every planned attempt of the phase completed; a narrowed run never did."""
        return all(line.status == "completed" for line in self.lines)

    @property
    def selected_completed(self) -> bool:
        """Whether every selected attempt completed."""
        return all(line.status == "completed" for line in self.selected)

    @property
    def charged_usd(self) -> Decimal:
        """What this run was charged so far, its open reservations not included."""
        return money.total(line.observation.charged_usd for line in self.lines if line.observation)


def view(ledger: Ledger, run: str) -> RunView:
    """Return what the ledger holds of a run."""
    row = ledger.records(run=run, kind="run")[0]
    started = {record.attempt: record.at for record in ledger.records(run=run, kind="start")}
    ended = {}
    observations = {}
    for record in ledger.records(run=run, kind="observation"):
        ended[record.attempt] = record.at
        observations[record.attempt] = Observation.model_validate_json(json.dumps(record.body))
    selected = set(row.body["selected"])
    return RunView(
        row=row,
        lines=tuple(
            _line(planned, selected, started, ended, observations)
            for planned in row.body["planned"]
        ),
        stop=next(iter(ledger.records(run=run, kind="stop", limit=1)), None),
        close=next(iter(ledger.records(run=run, kind="close", limit=1)), None),
        balance=ledger.balance(row.account),
        cap_usd=cap_of(ledger, row.account, run),
        verdicts=_verdicts(ledger, row),
        judged_usd=_judged_usd(ledger, row),
    )


def _judged_usd(ledger: Ledger, row: Record) -> Decimal | None:
    if row.body["phase"] == "adjudicate":
        return None
    sessions = [
        one.run
        for one in ledger.records(kind="run")
        if one.body.get("judges", {}).get("run") == row.run
    ]
    charged = [
        money.parse_exact(seen.body["charged_usd"])
        for session in sessions
        for seen in ledger.records(run=session, kind="observation")
    ]
    return money.total(charged) if sessions else None


def _verdicts(ledger: Ledger, row: Record) -> tuple[Record, ...]:
    judges = row.body.get("judges")
    if judges is None:
        return tuple(ledger.records(run=row.run, kind="verdict"))
    # Of an adjudication: those that it gave itself.
    given = ledger.records(run=judges["run"], kind="verdict")
    return tuple(one for one in given if one.body["adjudicator"]["session"] == row.run)


def _line(
    planned: dict[str, Any],
    selected: set[str],
    started: dict[str, str],
    ended: dict[str, str],
    observations: dict[str, Observation],
) -> Line:
    name = planned["id"]
    attempt = Attempt.model_validate({key: planned[key] for key in Attempt.model_fields})
    observation = observations.get(name)
    status: Shown = "blocked"
    if observation is not None:
        status = observation.status
    elif name not in selected:
        status = "not selected"
    elif name in started:
        status = "open"
    return Line(
        attempt=attempt,
        status=status,
        observation=observation,
        started_at=started.get(name),
        ended_at=ended.get(name),
    )
