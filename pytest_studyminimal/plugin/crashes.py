"""A worker that died in mid-attempt: the attempt is closed, charged in full, and the run stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_studyminimal.evidence.sessions import lost
from pytest_studyminimal.plugin.properties import of_observation

if TYPE_CHECKING:
    from pytest_studyminimal.plugin.session import StudySession

WORKER_ENDED = "its worker process ended"


def record_crash(session: StudySession, nodeid: str, report: Any) -> None:
    """Observe the crashed item's attempt and put its figures on xdist's report."""
    run = session.run
    if run is None:
        return
    attempt = nodeid.rpartition("[")[2].removesuffix("]")
    with run.ledger.transaction():
        if run.ledger.has("observation", run=run.id, attempt=attempt):
            return
        if attempt not in run.row().body["selected"]:
            return
        observation = lost(run.row(), attempt, run.budget, WORKER_ENDED)
        run.budget.observe_inside(observation, {})
    report.user_properties = list(of_observation(run, session.phase, observation).items())
