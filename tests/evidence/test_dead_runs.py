"""A session that was killed: its run is closed by the next one, charged in full, and never resumed."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from ledgers import RUN, STUDY, begin, child, observation, opened, whole

from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.records import Balance
from pytest_studyminimal.evidence.sessions import SESSION_ENDED, alive, close_dead_runs
from pytest_studyminimal.protocol.errors import (
    AlreadyStartedError,
    LedgerError,
    RunStoppedError,
)
from pytest_studyminimal.protocol.records import Observation


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "ledger.sqlite3"


@pytest.fixture
def killed(path):
    """A run whose process was killed inside its second attempt."""
    process = child("attempt", path, RUN)
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    process.kill()
    process.communicate(timeout=30)
    return path


def test_a_killed_run_loses_no_spend_before_anyone_looks(killed):
    with opened(killed) as ledger:
        whole(ledger)
        balance = ledger.balance(STUDY)

    assert balance == Balance(Decimal("0.1323"), Decimal("0.10"))


def test_the_attempt_that_was_open_failed_and_is_charged_in_full(killed):
    with opened(killed) as ledger:
        assert close_dead_runs(ledger) == (RUN,)
        whole(ledger)
        rows = ledger.records(run=RUN, kind="observation")
        lost = Observation.model_validate_json(json.dumps(rows[1].body))
        balance = ledger.balance(STUDY)
        kept = ledger.records(run=RUN, kind="settle")[-1].body
        (close,) = ledger.records(run=RUN, kind="close")

    assert [row.attempt for row in rows] == ["one:plain:1", "one:docs:1"]
    assert (lost.status, lost.reason) == ("failed", SESSION_ENDED)
    assert lost.problems == ("failed: the session ended",)
    assert lost.charged_usd == Decimal("0.12")
    assert (lost.usage, lost.turns, lost.wall_s, lost.computed_cost_usd) == (None, None, None, None)
    assert balance == Balance(Decimal("0.1323"), Decimal(0))
    assert (kept["charged_usd"], kept["measured"]) == ("0.1", False)
    assert close.body == {"reason": "the session ended"}


def test_an_attempt_that_never_started_is_not_observed(killed):
    with opened(killed) as ledger:
        close_dead_runs(ledger)

        assert ledger.records(run=RUN, attempt="two:plain:1") == []


def test_closing_twice_changes_nothing(killed):
    with opened(killed) as ledger, opened(killed) as other:
        close_dead_runs(ledger)
        after = whole(ledger)

        assert close_dead_runs(ledger) == close_dead_runs(other) == ()
        assert ledger.records() == after


def test_a_closed_run_starts_nothing_any_more(killed):
    with opened(killed) as ledger:
        close_dead_runs(ledger)
        budget = Budget(ledger, STUDY, RUN)

        with pytest.raises(RunStoppedError, match="the run stopped at one:docs:1: failed"):
            budget.start("two:plain:1")
        with pytest.raises((AlreadyStartedError, RunStoppedError)):
            budget.start("one:docs:1")


def test_the_next_run_pays_for_what_the_killed_one_had_reserved(killed):
    with opened(killed) as ledger:
        close_dead_runs(ledger)
        following = begin(ledger, run="run-2", cap="0.20")

        assert following.balance().spent_usd == Decimal("0.1323")
        following.reserve("one:plain:1", Decimal("0.0677"))


def test_a_run_of_a_living_process_is_left_alone(path):
    with opened(path) as ledger:
        budget = begin(ledger, ("one:plain:1",))
        process = child("lock", path, RUN)
        assert process.stdout.readline() == "ready\n"
        budget.start("one:plain:1")
        budget.reserve("one:plain:1", Decimal("0.10"))

        assert close_dead_runs(ledger) == ()
        assert budget.balance().reserved_usd == Decimal("0.10")

        process.kill()
        process.communicate(timeout=30)
        assert close_dead_runs(ledger) == (RUN,)
        assert budget.balance() == Balance(Decimal("0.10"), Decimal(0))


def test_a_run_lives_as_long_as_any_of_its_processes(path):
    with opened(path) as ledger:
        begin(ledger)
        worker = child("lock", path, RUN)
        assert worker.stdout.readline() == "ready\n"
        with alive(ledger, RUN):
            worker.kill()
            worker.communicate(timeout=30)
            assert close_dead_runs(ledger) == ()
        assert close_dead_runs(ledger) == (RUN,)


def test_only_the_dead_of_several_runs_are_closed_each_in_its_own_account(path):
    with opened(path) as ledger:
        for run, account in (("run-1", STUDY), ("run-2", "rehearsal:run-2"), ("run-3", STUDY)):
            budget = begin(ledger, run=run, account=account)
            budget.start("one:plain:1")
            budget.reserve("one:plain:1", Decimal("0.10"))
        with alive(ledger, "run-3"):
            assert close_dead_runs(ledger) == ("run-1", "run-2")

        whole(ledger)
        assert ledger.balance("rehearsal:run-2") == Balance(Decimal("0.10"), Decimal(0))
        assert ledger.balance(STUDY) == Balance(Decimal("0.20"), Decimal("0.10"))


def test_a_run_that_ended_with_its_last_attempt_is_closed_without_a_new_observation(path):
    with opened(path) as ledger:
        budget = begin(ledger)
        budget.start("one:plain:1")
        budget.observe(observation("one:plain:1"), {})

        assert close_dead_runs(ledger) == (RUN,)
        assert len(ledger.records(kind="observation")) == 1
        assert not ledger.has("stop", run=RUN)


def test_a_lock_file_that_is_a_link_is_refused(path, tmp_path):
    with opened(path) as ledger:
        (ledger.directory / f"run-{RUN}.lock").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(LedgerError, match="required a writable lock file"), alive(ledger, RUN):
            pytest.fail("followed a link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_is_private(path):
    with opened(path) as ledger, alive(ledger, RUN):
        assert (ledger.directory / f"run-{RUN}.lock").stat().st_mode & 0o777 == 0o600
