"""A worker that died in mid-attempt: the attempt is closed, charged in full, and the run stops."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.evidence.sessions import lost
from pytest_studyminimal.plugin.properties import of_observation
from pytest_studyminimal.protocol.errors import LedgerError
from pytest_studyminimal.protocol.records import Observation

if TYPE_CHECKING:
    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.run import Run

WORKER_ENDED = "its worker process ended"


def record_crash(session: StudySession, nodeid: str, report: Any) -> None:
    """Observe the crashed item's attempt and put its figures on xdist's report."""
    run = session.run
    if run is None:
        return
    attempt = nodeid.rpartition("[")[2].removesuffix("]")
    # Without a working ledger the next session closes the attempt.
    with contextlib.suppress(LedgerError):
        observation = _observed(run, attempt)
        report.user_properties = list(of_observation(run, session.phase, observation).items())


def _observed(run: Run, attempt: str) -> Observation:
    for record in run.ledger.records(run=run.id, kind="observation", attempt=attempt):
        # It died in the teardown: the attempt is as it was observed, but nothing follows it.
        run.budget.stop(WORKER_ENDED, attempt)
        return Observation.model_validate_json(json.dumps(record.body))
    with run.ledger.transaction():
        observation = lost(run.row(), attempt, run.budget, WORKER_ENDED)
        run.budget.observe_inside(observation, {})
    return observation
