"""Whole histories of an account: runs that pay, stop, crash and start again, against a plain model."""

from __future__ import annotations

import contextlib
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledgers import STUDY, begin, observation, opened

from pytest_studyminimal.evidence.sessions import alive, close_dead_runs
from pytest_studyminimal.evidence.verification import exported, read_export, verify
from pytest_studyminimal.protocol.errors import (
    AlreadyStartedError,
    BudgetRefusedError,
    RunStoppedError,
)

CENTS = st.integers(1, 40).map(lambda cents: Decimal(cents) / 100)
NAMES = tuple(f"one:plain:{number}" for number in range(1, 4))


class History(RuleBasedStateMachine):
    """Sessions come and go on one ledger; `runs` maps a live run to what the model knows of it."""

    @initialize()
    def begin(self):
        self.place = tempfile.TemporaryDirectory()
        self.path = Path(self.place.name) / "state" / "ledger.sqlite3"
        self.ledger = opened(self.path)
        self.runs, self.dead, self.count = {}, {}, 0
        self.settled, self.cap = Decimal(0), Decimal(0)
        self.overshoot = Decimal(0)

    @property
    def reserved(self):
        every = [*self.runs.values(), *self.dead.values()]
        return sum((usd for run in every for _, _, usd in run["open"]), Decimal(0))

    @rule(cents=st.integers(50, 300))
    def open_run(self, cents):
        cap = Decimal(cents) / 100
        name = f"run-{self.count}"
        self.count += 1
        if cap < self.settled + self.reserved:
            with pytest.raises(BudgetRefusedError):
                begin(self.ledger, NAMES, cap=cap, run=name)
            return
        ledger = opened(self.path)
        stack = contextlib.ExitStack()
        stack.enter_context(ledger)
        stack.enter_context(alive(ledger, name))
        budget = begin(ledger, NAMES, cap=cap, run=name)
        self.cap = cap
        self.runs[name] = {
            "stack": stack,
            "budget": budget,
            "cap": cap,
            "started": set(),
            "open": [],
            "stopped": False,
            "observed": set(),
        }

    def any_run(self, data):
        return self.runs[data.draw(st.sampled_from(sorted(self.runs)))]

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def start(self, data, name):
        run = self.any_run(data)
        if run["stopped"]:
            with pytest.raises(RunStoppedError):
                run["budget"].start(name)
        elif name in run["started"]:
            with pytest.raises(AlreadyStartedError):
                run["budget"].start(name)
        else:
            run["budget"].start(name)
            run["started"].add(name)

    @precondition(lambda self: any(run["started"] - run["observed"] for run in self.runs.values()))
    @rule(data=st.data(), usd=CENTS)
    def reserve(self, data, usd):
        able = [run for run in self.runs.values() if run["started"] - run["observed"]]
        run = data.draw(st.sampled_from(able))
        name = data.draw(st.sampled_from(sorted(run["started"] - run["observed"])))
        if run["stopped"]:
            with pytest.raises(RunStoppedError):
                run["budget"].reserve(name, usd)
        elif self.settled + self.reserved + usd > min(self.cap, run["cap"]):
            with pytest.raises(BudgetRefusedError):
                run["budget"].reserve(name, usd)
        else:
            run["open"].append((run["budget"].reserve(name, usd), name, usd))

    @precondition(lambda self: any(run["open"] for run in self.runs.values()))
    @rule(data=st.data(), share=st.sampled_from(["0", "0.3", "1", "1.5"]))
    def settle(self, data, share):
        run = data.draw(st.sampled_from([run for run in self.runs.values() if run["open"]]))
        place = data.draw(st.integers(0, len(run["open"]) - 1))
        seq, _, usd = run["open"].pop(place)
        charged = usd * Decimal(share)
        run["budget"].settle(seq, charged, measured=True)
        self.settled += charged
        self.overshoot += max(Decimal(0), charged - usd)

    @precondition(lambda self: any(run["started"] - run["observed"] for run in self.runs.values()))
    @rule(data=st.data(), status=st.sampled_from(["completed", "completed", "failed"]))
    def observe(self, data, status):
        able = [run for run in self.runs.values() if run["started"] - run["observed"]]
        run = data.draw(st.sampled_from(able))
        name = data.draw(st.sampled_from(sorted(run["started"] - run["observed"])))
        budget = run["budget"]
        with budget.ledger.transaction():
            charged = budget.retain_open(name)
            budget.observe_inside(observation(name, status, charged=str(charged.usd)), {"a": name})
        self.settled += sum(usd for _, other, usd in run["open"] if other == name)
        run["open"] = [one for one in run["open"] if one[1] != name]
        run["observed"].add(name)
        run["stopped"] = run["stopped"] or status != "completed"

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def crash(self, data):
        name = data.draw(st.sampled_from(sorted(self.runs)))
        run = self.runs.pop(name)
        run["stack"].close()
        self.dead[name] = run

    @rule()
    def restart(self):
        """Whoever comes next closes what died, and charges what was open."""
        assert set(close_dead_runs(self.ledger)) == set(self.dead)
        for run in self.dead.values():
            self.settled += sum(usd for _, _, usd in run["open"])
        self.dead = {}

    @invariant()
    def the_ledger_says_what_the_model_says(self):
        if not hasattr(self, "ledger"):
            return
        balance = self.ledger.balance(STUDY)
        assert balance.spent_usd == self.settled
        assert balance.reserved_usd == self.reserved
        assert balance.committed_usd <= max(self.cap, Decimal(3)) + self.overshoot
        assert verify(self.ledger.records()).problems == ()

    def teardown(self):
        if not hasattr(self, "ledger"):
            return
        copy = Path(self.place.name) / "copy.jsonl"
        records = self.ledger.records()
        copy.write_text("".join(exported(one, private=False) + "\n" for one in records))
        assert verify(read_export(copy)).problems == ()
        for run in self.runs.values():
            run["stack"].close()
        self.ledger.close()
        self.place.cleanup()


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
