"""The cap: reserve before spend, across processes, crashes and restarts."""

from __future__ import annotations

import decimal
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledgers import RUN, STUDY, begin, child, observation, opened, together, whole

from pytest_studyminimal.evidence.budget import Budget, cap_of
from pytest_studyminimal.evidence.records import Balance
from pytest_studyminimal.protocol.errors import (
    AlreadyStartedError,
    BudgetRefusedError,
    LedgerError,
    RunStoppedError,
)

ONE, TWO = "one:plain:1", "two:plain:1"


@pytest.fixture
def ledger(tmp_path):
    with opened(tmp_path / "state" / "ledger.sqlite3") as ledger:
        yield ledger


@pytest.fixture
def budget(ledger):
    return begin(ledger, (ONE, TWO), cap="1")


def dollars(committed, reserved="0"):
    return Balance(Decimal(committed), Decimal(reserved))


def test_a_reservation_is_committed_before_it_is_settled(ledger, budget):
    seq = budget.reserve(ONE, Decimal("0.10"))
    reserved = budget.balance()
    budget.settle(seq, Decimal("0.0123"), measured=True)

    assert reserved == dollars("0.10", "0.10")
    assert budget.balance() == dollars("0.0123")
    assert budget.balance().spent_usd == Decimal("0.0123")
    whole(ledger)


def test_what_is_on_disk_is_what_another_connection_reads_at_once(ledger, budget):
    budget.reserve(ONE, Decimal("0.10"))

    with opened(ledger.path) as other:
        assert other.balance(STUDY) == dollars("0.10", "0.10")


def test_a_refusal_says_all_four_amounts_and_appends_nothing(ledger, budget):
    first = budget.reserve(ONE, Decimal("0.50"))
    budget.settle(first, Decimal("0.25"), measured=True)
    budget.reserve(ONE, Decimal("0.70"))
    before = ledger.records()

    with pytest.raises(BudgetRefusedError) as refused:
        budget.reserve(ONE, Decimal("0.0500001"))

    assert str(refused.value) == "budget: cap 1 USD, spent 0.25, reserved 0.7, needed 0.0500001"
    assert refused.value.needed_usd == Decimal("0.0500001")
    assert ledger.records() == before


def test_the_last_cent_under_the_cap_may_be_reserved(budget):
    budget.reserve(ONE, Decimal("0.999999999999"))
    budget.reserve(ONE, Decimal("0.000000000001"))

    with pytest.raises(BudgetRefusedError):
        budget.reserve(ONE, Decimal("0.000000000001"))


@pytest.mark.parametrize("precision", [28, 3])
@pytest.mark.parametrize(
    ("cap", "charged", "following", "starts"),
    [
        ("0.80", ["0.10", "0.70"], "0.10", False),
        ("0.30", ["0.10", "0.10"], "0.10", True),
        ("1", ["0.1"] * 9, "0.1", True),
        ("1", ["0.000001"] * 3, "0.999997", True),
        ("1", ["0.000001"] * 3, "0.9999971", False),
    ],
)
def test_a_decision_at_the_cap_is_exact(ledger, precision, cap, charged, following, starts):
    with decimal.localcontext(decimal.Context(prec=precision, rounding=decimal.ROUND_HALF_UP)):
        budget = begin(ledger, cap=cap)
        for amount in charged:
            seq = budget.reserve(ONE, Decimal(amount))
            budget.settle(seq, Decimal(amount), measured=True)
        if starts:
            budget.reserve(ONE, Decimal(following))
        else:
            with pytest.raises(BudgetRefusedError):
                budget.reserve(ONE, Decimal(following))
    whole(ledger)


def test_four_processes_with_ten_attempts_start_exactly_what_the_cap_holds(tmp_path):
    path = tmp_path / "state" / "ledger.sqlite3"
    with opened(path) as ledger:
        begin(ledger, cap="0.30")
    ranges = [(0, 3), (3, 6), (6, 8), (8, 10)]
    outputs = together(*(child("spend", path, first, last) for first, last in ranges))

    with opened(path) as ledger:
        records = whole(ledger)
        cap = cap_of(ledger, STUDY, RUN)
    admitted = sorted(name for output in outputs for name in output)
    assert len(admitted) == 3
    assert sorted(one.attempt for one in records if one.kind == "reserve") == admitted
    assert all(record.balance.committed_usd <= cap for record in records)
    assert records[-1].balance == dollars("0.30")
    # Refused before anything was sent: started, but without a reservation.
    assert len([one for one in records if one.kind == "start"]) == 10


def test_a_charge_above_its_reservation_is_recorded_and_never_clamped(ledger, budget):
    seq = budget.reserve(ONE, Decimal("0.90"))
    budget.settle(seq, Decimal("1.25"), measured=True)

    assert budget.balance() == dollars("1.25")
    with pytest.raises(BudgetRefusedError) as refused:
        budget.reserve(ONE, Decimal("0.000000000001"))
    assert refused.value.spent_usd == Decimal("1.25")
    assert ledger.records(kind="settle")[0].body == {
        "charged_usd": "1.25",
        "measured": True,
        "reservation": seq,
    }


def test_a_reservation_is_settled_once(ledger, budget):
    seq = budget.reserve(ONE, Decimal("0.10"))
    budget.settle(seq, Decimal("0.05"), measured=True)

    with pytest.raises(LedgerError):
        budget.settle(seq, Decimal("0.01"), measured=True)

    assert budget.balance() == dollars("0.05")
    whole(ledger)


def test_an_unknown_reservation_cannot_be_settled(ledger, budget):
    before = ledger.records()

    with pytest.raises(KeyError):
        budget.settle(99, Decimal("0.01"), measured=True)

    assert ledger.records() == before


def test_open_reservations_are_kept_in_full_and_only_once(ledger, budget):
    measured = budget.reserve(ONE, Decimal("0.10"))
    budget.settle(measured, Decimal("0.02"), measured=True)
    budget.reserve(ONE, Decimal("0.10"))
    budget.reserve(ONE, Decimal("0.20"))
    other = budget.reserve(TWO, Decimal("0.40"))

    charged = []
    for _ in range(2):
        with ledger.transaction():
            charged.append(budget.retain_open(ONE).usd)

    assert charged == [Decimal("0.32")] * 2
    assert budget.balance() == dollars("0.72", "0.40")
    kept = [one.body["measured"] for one in ledger.records(kind="settle")]
    assert kept == [True, False, False]
    budget.settle(other, Decimal(0), measured=True)
    whole(ledger)


def test_an_attempt_without_reservations_was_charged_nothing(ledger, budget):
    with ledger.transaction():
        assert budget.retain_open(ONE).usd == 0


def test_an_attempt_starts_once_in_whatever_process(ledger, budget):
    budget.start(ONE)

    with opened(ledger.path) as other:
        for again in (budget, Budget(other, STUDY, RUN)):
            with pytest.raises(AlreadyStartedError, match=f"{ONE} was started before"):
                again.start(ONE)
            with pytest.raises(AlreadyStartedError):
                again.admit(ONE, Decimal("0.01"))
    assert len(ledger.records(kind="start")) == 1


def test_admission_writes_nothing_and_refuses_what_a_reservation_would(ledger, budget):
    before = ledger.records()
    budget.admit(ONE, Decimal(1))

    with pytest.raises(BudgetRefusedError):
        budget.admit(ONE, Decimal("1.000000000001"))

    assert ledger.records() == before


def test_without_an_approval_nothing_may_be_spent(ledger):
    budget = Budget(ledger, STUDY, RUN)

    for act in (
        budget.cap_usd,
        lambda: budget.admit(ONE, Decimal("0.01")),
        lambda: budget.reserve(ONE, Decimal("0.01")),
    ):
        with pytest.raises(LedgerError, match="found no approved budget"):
            act()
    assert len(ledger.records()) == 1


def approve(ledger, budget, cap):
    with ledger.transaction():
        budget.approve(Decimal(cap), phase="full", series="s", source="a test")


def test_an_approval_below_what_is_committed_is_refused(ledger, budget):
    budget.reserve(ONE, Decimal("0.40"))

    with pytest.raises(BudgetRefusedError) as refused:
        approve(ledger, budget, "0.399999999999")

    assert refused.value.reserved_usd == Decimal("0.40")
    assert budget.cap_usd() == 1
    approve(ledger, budget, "0.40")
    with pytest.raises(BudgetRefusedError):
        budget.reserve(ONE, Decimal("0.000000000001"))


def test_a_raised_approval_extends_later_runs_and_not_what_this_one_announced(ledger, budget):
    with opened(ledger.path) as other:
        budget.reserve(ONE, Decimal(1))
        later = begin(other, run="run-2", cap="1.50")

        with pytest.raises(BudgetRefusedError):
            budget.reserve(ONE, Decimal("0.01"))
        later.reserve(ONE, Decimal("0.50"))
        with pytest.raises(BudgetRefusedError):
            later.reserve(ONE, Decimal("0.01"))


def test_a_lower_approval_holds_for_every_run_at_once(ledger, budget):
    begin(ledger, run="run-2", cap="0.50")

    with pytest.raises(BudgetRefusedError):
        budget.reserve(ONE, Decimal("0.60"))
    budget.reserve(ONE, Decimal("0.50"))


def test_a_new_run_spends_from_the_same_account_and_a_rehearsal_from_its_own(ledger, budget):
    seq = budget.reserve(ONE, Decimal("0.90"))
    budget.settle(seq, Decimal("0.90"), measured=True)

    later = begin(ledger, run="run-2", cap="1")
    rehearsal = begin(ledger, run="run-3", account="rehearsal:run-3", cap="1")

    with pytest.raises(BudgetRefusedError):
        later.reserve(ONE, Decimal("0.20"))
    rehearsal.reserve(ONE, Decimal(1))
    assert later.balance() == dollars("0.90")
    whole(ledger)


def test_a_stop_holds_in_every_process_and_says_where_and_why(ledger, budget):
    budget.start(ONE)
    seq = budget.reserve(ONE, Decimal("0.10"))
    process = child("wait_stopped", ledger.path)
    assert process.stdout.readline() == "ready\n"
    budget.stop("timed-out", ONE)
    out, err = process.communicate("go\n", timeout=30)

    assert err == ""
    assert out.splitlines() == [f"RunStoppedError: the run stopped at {ONE}: timed-out"] * 3
    budget.settle(seq, Decimal("0.01"), measured=True)
    assert budget.balance() == dollars("0.01")


def test_the_first_stop_is_the_one_that_counts(ledger, budget):
    budget.stop("failed", ONE)
    budget.stop("timed-out", TWO)

    assert [one.body for one in ledger.records(kind="stop")] == [{"why": "failed"}]


def test_another_run_is_not_stopped(ledger, budget):
    budget.stop("failed")
    begin(ledger, run="run-2").start(ONE)

    with pytest.raises(RunStoppedError, match="the run stopped: failed"):
        budget.start(TWO)


def test_a_closed_run_is_never_reopened(ledger, budget):
    with ledger.transaction():
        ledger.append("close", account=STUDY, run=RUN, body={"reason": "done"})

    for act in (
        lambda: budget.start(ONE),
        lambda: budget.admit(ONE, Decimal("0.01")),
        lambda: budget.reserve(ONE, Decimal("0.01")),
    ):
        with pytest.raises(RunStoppedError, match="a run is never reopened"):
            act()


@pytest.mark.parametrize(
    "status", ["failed", "timed-out", "budget-exceeded", "invalid-setup", "invalid-cost", "blocked"]
)
def test_any_status_but_completed_stops_the_run_in_the_same_transaction(ledger, budget, status):
    budget.observe(observation(ONE), {})
    budget.start(TWO)
    budget.observe(observation(TWO, status), {"answer": "secret"})

    assert [one.kind for one in ledger.records()[-2:]] == ["observation", "stop"]
    with pytest.raises(RunStoppedError, match=f"the run stopped at {TWO}: {status}"):
        budget.start("three:plain:1")


def test_an_attempt_is_observed_once(ledger, budget):
    budget.observe(observation(ONE), {})

    with pytest.raises(LedgerError):
        budget.observe(observation(ONE, "failed"), {})

    assert not ledger.has("stop", run=RUN)


CENTS = st.integers(0, 60).map(lambda cents: Decimal(cents) / 100)


class Spending(RuleBasedStateMachine):
    """Two connections at one ledger against a plain model of what they did."""

    @initialize()
    def begin(self):
        self.place = tempfile.TemporaryDirectory()
        self.path = Path(self.place.name) / "state" / "ledger.sqlite3"
        self.ledgers = [opened(self.path), opened(self.path)]
        begin(self.ledgers[0], cap="2")
        self.cap, self.charged, self.open = Decimal(2), Decimal(0), {}
        self.stopped = False

    def budget(self, second):
        return Budget(self.ledgers[second], STUDY, RUN)

    @property
    def committed(self):
        return self.charged + sum(usd for _, usd in self.open.values())

    @rule(second=st.booleans(), usd=CENTS, attempt=st.sampled_from([ONE, TWO]))
    def reserve(self, second, usd, attempt):
        if self.stopped:
            with pytest.raises(RunStoppedError):
                self.budget(second).reserve(attempt, usd)
        elif self.committed + usd > self.cap:
            with pytest.raises(BudgetRefusedError):
                self.budget(second).reserve(attempt, usd)
        else:
            self.open[self.budget(second).reserve(attempt, usd)] = (attempt, usd)

    @precondition(lambda self: self.open)
    @rule(second=st.booleans(), usd=CENTS, data=st.data())
    def settle(self, second, usd, data):
        seq = data.draw(st.sampled_from(sorted(self.open)))
        self.budget(second).settle(seq, usd, measured=True)
        del self.open[seq]
        self.charged += usd
        with pytest.raises(LedgerError):
            self.budget(not second).settle(seq, usd, measured=True)

    @rule(second=st.booleans(), attempt=st.sampled_from([ONE, TWO]))
    def retain(self, second, attempt):
        ledger = self.ledgers[second]
        with ledger.transaction():
            self.budget(second).retain_open(attempt)
        for seq in [seq for seq, (name, _) in self.open.items() if name == attempt]:
            self.charged += self.open.pop(seq)[1]

    @rule(second=st.booleans(), usd=CENTS)
    def approve(self, second, usd):
        cap = 4 * usd + Decimal("0.01")
        if cap < self.committed:
            with pytest.raises(BudgetRefusedError):
                approve(self.ledgers[second], self.budget(second), cap)
        else:
            approve(self.ledgers[second], self.budget(second), cap)
            self.cap = min(Decimal(2), cap)

    @rule(second=st.booleans(), usd=CENTS)
    def lose_a_transaction(self, second, usd):
        def interrupted():
            ledger = self.ledgers[second]
            with ledger.transaction():
                ledger.append("reserve", account=STUDY, run=RUN, body={}, balance=Balance(usd, usd))
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()

    @rule(second=st.booleans())
    def restart(self, second):
        self.ledgers[second].close()
        self.ledgers[second] = opened(self.path)

    @precondition(lambda self: len(self.open) > 2)
    @rule(second=st.booleans())
    def stop(self, second):
        self.budget(second).stop("failed")
        self.stopped = True

    @invariant()
    def both_read_what_the_model_says(self):
        reserved = sum(usd for _, usd in self.open.values())
        for ledger in self.ledgers:
            assert ledger.balance(STUDY) == Balance(self.committed, Decimal(reserved))
            assert cap_of(ledger, STUDY, RUN) == self.cap

    def teardown(self):
        if hasattr(self, "ledgers"):
            whole(self.ledgers[0])
            for ledger in self.ledgers:
                ledger.close()
            self.place.cleanup()


TestSpending = Spending.TestCase
TestSpending.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
