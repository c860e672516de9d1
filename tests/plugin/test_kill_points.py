"""A session killed before and after each of its writes: no dollar is lost, doubled or forgotten."""

from __future__ import annotations

import signal
from decimal import Decimal

import pytest
import sessions

import studies
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.sessions import close_dead_runs
from pytest_studyminimal.evidence.verification import verify
from pytest_studyminimal.protocol.errors import LedgerError

pytestmark = pytest.mark.slow

# Lies beside the study, as an author's own code would: the product has no hook for this.
KILLER = """
import contextlib, os, signal
from pytest_studyminimal.evidence.ledger import Ledger

WHERE, NUMBER = {where!r}, {number}
whole, count = Ledger.transaction, 0

@contextlib.contextmanager
def killing(self):
    global count
    count += 1
    if (WHERE, NUMBER) == ("before", count):
        os.kill(os.getpid(), signal.SIGKILL)
    with whole(self):
        yield
        if (WHERE, NUMBER) == ("inside", count):
            os.kill(os.getpid(), signal.SIGKILL)
    if (WHERE, NUMBER) == ("after", count):
        os.kill(os.getpid(), signal.SIGKILL)

Ledger.transaction = killing
"""
WRITES = range(1, 16)
PRICE_USD = Decimal("0.0008")  # of one answer, at the upper rates


@pytest.mark.parametrize("where", ["inside", "after"])
@pytest.mark.parametrize("number", WRITES)
def test_a_session_killed_at_a_write_loses_no_spend_and_the_next_one_starts(
    tmp_path, number, where
):
    with sessions.behaving(lambda request, stop: sessions.ANSWER) as provider:
        study = studies.make_study(tmp_path, base_url=provider.base_url)
        author = study.folder / "conftest.py"
        author.write_text(KILLER.format(where=where, number=number))
        with sessions.started_session(study) as session:
            ended = session.wait()
            sessions.nothing_left(session, 5.0)
        assert ended.status in {-signal.SIGKILL, 0}, ended.out + ended.err
        # Each paid call is covered on disk at the moment of the kill, at its price or in full.
        assert committed(study) >= len(provider.received) * PRICE_USD
        author.unlink()
        if number % 5 == 0:
            after = sessions.run(study)
            assert after.status == 0, after.out + after.err
            assert study.last_run().completed
    with Ledger.open(study.ledger, "tiny") as ledger:
        close_dead_runs(ledger)
        assert ledger.open_runs() == []
        assert verify(ledger.records()).problems == ()
        assert ledger.balance("tiny").reserved_usd == 0
        assert ledger.balance("tiny").committed_usd >= len(provider.received) * PRICE_USD


def committed(study):
    if not study.ledger.exists():
        return Decimal(0)
    # As it was left: whoever opens it to write would repair it first.
    with Ledger.read(study.ledger, damaged=True) as ledger:
        try:
            return ledger.balance("tiny").committed_usd
        except LedgerError:
            return Decimal(0)


def test_the_writes_of_a_pilot_are_all_among_the_points(tmp_path):
    with sessions.behaving(lambda request, stop: sessions.ANSWER) as provider:
        study = studies.make_study(tmp_path, base_url=provider.base_url)
        counter = study.folder / "count.txt"
        (study.folder / "conftest.py").write_text(
            KILLER.format(where="never", number=0)
            + f"\nimport atexit\natexit.register(lambda: open({str(counter)!r}, 'w').write(str(count)))\n"
        )
        assert sessions.run(study).status == 0
    assert int(counter.read_text()) <= WRITES[-1]
