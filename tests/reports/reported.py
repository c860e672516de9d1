"""Runs in real ledgers, for the reports."""

from __future__ import annotations

import contextlib
from decimal import Decimal

from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.series import Series
from pytest_studyminimal.protocol.records import Attempt, Observation, Usage
from pytest_studyminimal.reports.view import view

STUDY = "little-study"
ARMS = ("plain", "docs")
SERIES = Series(
    protocol="a" * 64,
    answer_key="b" * 64,
    runner="c" * 64,
    runner_version="0.1",
    transport="messages-api",
    transport_version="2023-06-01",
    connection="api",
    provider="anthropic",
    model="claude-haiku-5-5",
    prices="d" * 64,
    servers={},
    rehearsal=False,
)


class Reported:
    """One run of a study in its ledger; attempts are named `task:arm:repetition`."""

    def __init__(self, ledger, attempts, *, cap="1", run="run-1", account=STUDY, **row):
        self.ledger = ledger
        self.run = run
        self.budget = Budget(ledger, account, run)
        self.planned = {}
        for place, name in enumerate(attempts):
            task, scenario, repetition = name.split(":")
            self.planned[name] = Attempt(
                place=place,
                task=task,
                scenario=scenario,
                repetition=int(repetition),
                connection="api",
            )
        body = {
            "study": STUDY,
            "phase": "pilot",
            "rehearsal": False,
            "scenarios": list(ARMS),
            "planned": [{"id": name, **one.model_dump()} for name, one in self.planned.items()],
            "selected": list(attempts),
            "not_selected": [],
            "full_attempts": 12,
            "transport": "messages-api",
            "model": "claude-haiku-5-5",
            "series": {**SERIES.model_dump(mode="json"), "id": SERIES.id},
        } | row
        with ledger.transaction():
            ledger.append("run", account=account, run=run, body=body)
            self.budget.approve(Decimal(cap), phase=body["phase"], series="s", source="a test")

    def observe(self, name, charged="0.01", *, status="completed", **parts):
        """Start, charge and observe an attempt."""
        self.budget.start(name)
        if Decimal(charged):
            seq = self.budget.reserve(name, Decimal(charged))
            self.budget.settle(seq, Decimal(charged), measured=True)
        self.record(name, charged, status=status, **parts)

    def record(self, name, charged="0", *, status="completed", **parts):
        """Append an observation alone."""
        plain = {
            "turns": 2,
            "requests": 2,
            "tool_calls": 1,
            "usage": Usage(input_tokens=1000, output_tokens=100),
            "usage_complete": True,
            "answer_complete": status == "completed",
            "wall_s": 10.0,
        }
        observation = Observation(
            attempt=self.planned[name],
            status=status,
            transport="messages-api",
            model="claude-haiku-5-5",
            charged_usd=Decimal(charged),
            rehearsal=False,
            **plain | parts,
        )
        self.budget.observe(observation, {"answer": "private words"})

    def close(self, reason):
        """Append the end of the run."""
        with self.ledger.transaction():
            self.ledger.append(
                "close", account=self.budget.account, run=self.run, body={"reason": reason}
            )

    @property
    def view(self):
        """The run as a report reads it."""
        return view(self.ledger, self.run)


@contextlib.contextmanager
def opened(folder):
    """Open a ledger in a private folder."""
    with Ledger.open(folder / "state" / "ledger.sqlite3", STUDY) as ledger:
        yield ledger
