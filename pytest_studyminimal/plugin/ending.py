"""The end of a session: the run is closed for good, and its records alone decide the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_studyminimal.evidence.sessions import close_open_attempts
from pytest_studyminimal.protocol.errors import LedgerError
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from pytest_studyminimal.plugin.session import StudySession


def end_run(session: StudySession, pytest_session: pytest.Session) -> None:
    """Close this session's run; its exit status is not 0 unless every selected attempt completed.

    No process of the run may work on it any more. Attempts still open are failed, charged in full.
    """
    run = session.run
    if run is None:
        return
    try:
        if run.ledger.has("close", run=run.id):
            return
        reason = _reason(pytest_session)
        with run.ledger.transaction():
            close_open_attempts(run.ledger, run.row(), reason)
        run.close(reason)
        completed = view(run.ledger, run.id).selected_completed
    except LedgerError:
        # A ledger that cannot be written now is closed by the next session; this one did not succeed.
        completed = False
    if not completed and pytest_session.exitstatus in {0, 5}:
        pytest_session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _reason(pytest_session: pytest.Session) -> str:
    if pytest_session.exitstatus == pytest.ExitCode.INTERRUPTED:
        return "the session was interrupted"
    if pytest_session.exitstatus == pytest.ExitCode.INTERNAL_ERROR:
        return "pytest failed internally"
    return "the session ended"
