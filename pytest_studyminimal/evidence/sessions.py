"""Which runs are alive: every process of a run holds a shared lock on its lock file, never a PID."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.protocol.errors import LedgerError
from pytest_studyminimal.protocol.records import Attempt, Observation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_studyminimal.evidence.ledger import Ledger
    from pytest_studyminimal.evidence.records import Record

SESSION_ENDED = "the session ended"


@contextlib.contextmanager
def alive(ledger: Ledger, run: str) -> Iterator[None]:
    """Show every other process that this run is alive, until the block or the process ends."""
    handle = _open_lock(ledger.directory, run)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _open_lock(directory: Path, run: str) -> int:
    path = directory / f"run-{run}.lock"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LedgerError(
            f"{path}: found {error.strerror}, required a writable lock file"
        ) from None


def is_alive(directory: Path, run: str) -> bool:
    """Whether a process of this run lives; nothing is created or written."""
    path = directory / f"run-{run}.lock"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def close_dead_runs(ledger: Ledger) -> tuple[str, ...]:
    """Close every run whose processes are all gone, and return their ids.

    An attempt found open is `failed`, charged in full with every reservation that was never settled.
    """
    closed = []
    for row in ledger.open_runs():
        handle = _open_lock(ledger.directory, row.run)
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with ledger.transaction():
                    # Another session may have closed it while this one waited for its turn.
                    if not ledger.has("close", run=row.run):
                        _close_dead(ledger, row)
                        closed.append(row.run)
        finally:
            os.close(handle)
    return tuple(closed)


def _close_dead(ledger: Ledger, row: Record) -> None:
    close_open_attempts(ledger, row, SESSION_ENDED)
    body = {"reason": SESSION_ENDED}
    ledger.append("close", account=row.account, run=row.run, body=body)


def close_open_attempts(ledger: Ledger, row: Record, reason: str) -> tuple[str, ...]:
    """Observe every started attempt of a run that never ended as `failed`, inside a transaction."""
    budget = Budget(ledger, row.account, row.run)
    started = [record.attempt for record in ledger.records(run=row.run, kind="start")]
    observed = {record.attempt for record in ledger.records(run=row.run, kind="observation")}
    open_attempts = tuple(attempt for attempt in started if attempt not in observed)
    for attempt in open_attempts:
        budget.observe_inside(lost(row, attempt, budget, reason), {})
    return open_attempts


def lost(row: Record, attempt: str, budget: Budget, reason: str) -> Observation:
    """Return the observation of an attempt of which nothing but its charges is known."""
    planned = next(item for item in row.body["planned"] if item["id"] == attempt)
    charged_usd = budget.retain_open(attempt).usd
    return Observation(
        attempt=Attempt.model_validate({name: planned[name] for name in Attempt.model_fields}),
        status="failed",
        reason=reason,
        problems=(f"failed: {reason}",),
        transport=row.body["transport"],
        model=row.body["model"],
        charged_usd=charged_usd,
        rehearsal=row.body["rehearsal"],
    )
