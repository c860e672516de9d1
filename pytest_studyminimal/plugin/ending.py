"""The end of a session: the run is closed for good, and its records alone decide the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_studyminimal.evidence.sessions import close_open_attempts
from pytest_studyminimal.protocol.errors import LedgerError
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from pytest_studyminimal.plugin.session import StudySession


def end_run(session: StudySession, pytest_session: pytest.Session) -> bool:
    """Close this session's run and return whether every selected attempt completed."""
    run = session.run
    assert run is not None
    try:
        if not session.distributed:
            close(session, pytest_session)
        return view(run.ledger, run.id).selected_completed
    except LedgerError:
        # A ledger that cannot be written now is closed by the next session; this one did not succeed.
        return False


def close(session: StudySession, pytest_session: pytest.Session) -> None:
    """Close what is still open: attempts as failed and charged in full, then the run."""
    run = session.run
    assert run is not None
    reason = _reason(pytest_session)
    with run.ledger.transaction():
        close_open_attempts(run.ledger, run.row(), reason)
    run.close(reason)


def _reason(pytest_session: pytest.Session) -> str:
    if pytest_session.exitstatus == pytest.ExitCode.INTERRUPTED:
        return "the session was interrupted"
    if pytest_session.exitstatus == pytest.ExitCode.INTERNAL_ERROR:
        return "pytest failed internally"
    return "the session ended"
