"""What a study's test function asks for: a budget, a fresh export, fresh servers, one attempt."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_studyminimal.plugin.properties import attach, of_blocked, of_observation
from pytest_studyminimal.plugin.stash import SESSION
from pytest_studyminimal.preflight import places_of
from pytest_studyminimal.protocol.errors import (
    BudgetRefusedError,
    RunStoppedError,
    StudyError,
)
from pytest_studyminimal.protocol.records import Attempt, Observation, Status
from pytest_studyminimal.transports.messages import first_request_bytes
from pytest_studyminimal.workspace.export import Export, export
from pytest_studyminimal.workspace.toolbox import AttemptTools, attempt_tools

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.run import Run

OBSERVATION: pytest.StashKey[Observation] = pytest.StashKey()


@dataclass(frozen=True)
class StudyBudget:
    """The session's budget: it refuses an item before anything of it is prepared."""

    _session: StudySession = field(repr=False)

    def admit(self, item: pytest.Item) -> None:
        """Let an item's attempt be prepared, or end its setup: blocked by the cap or by a stopped run."""
        attempt = attempt_of(item)
        try:
            run = running(self._session)
        except StudyError as error:
            pytest.fail(str(error), pytrace=False)
        names = self._session.ready_for(attempt).offer(self._session.folder, attempt).definitions
        needed = first_request_bytes(
            run.assignment(attempt), names, temperature=run.terms.connection.temperature
        )
        try:
            run.admit(attempt, needed)
        except RunStoppedError as stopped:
            blocked(self._session, item, str(stopped))
        except BudgetRefusedError as refused:
            unprepared(self._session, item, "blocked", str(refused))
        except StudyError as error:
            pytest.fail(str(error), pytrace=False)


@dataclass
class StudyAttempt:
    """One attempt of the study; `run()` makes it, once."""

    attempt: Attempt
    _session: StudySession = field(repr=False)
    _item: pytest.Item = field(repr=False)
    _export: Export = field(repr=False)
    _tools: AttemptTools = field(repr=False)

    def run(self) -> Observation:
        """Run the attempt and return its observation; fails the test unless it completed."""
        run = running(self._session)
        try:
            observation = run.attempt(self.attempt, self._export, self._tools)
        except RunStoppedError as stopped:
            blocked(self._session, self._item, str(stopped))
        except StudyError as error:
            _fail(str(error))
        except Exception as error:  # noqa: BLE001 - a traceback's locals hold keys and answers
            run.log_privately(self.attempt, traceback.format_exc())
            _fail(f"internal error: {type(error).__name__} (see the private log)")
        observed(self._session, self._item, observation)
        if observation.status != "completed":
            _fail(f"{observation.status}: {observation.reason}")
        return observation


@pytest.fixture(scope="session")
def study_budget(request: pytest.FixtureRequest) -> StudyBudget:
    """The budget of this session's run."""
    return StudyBudget(request.config.stash[SESSION])


@pytest.fixture
def study_export(request: pytest.FixtureRequest, study_budget: StudyBudget) -> Iterator[Export]:
    """A fresh read-only export of the task's corpus, removed after the attempt."""
    session = request.config.stash[SESSION]
    study_budget.admit(request.node)
    corpus = session.ready_for(attempt_of(request.node)).corpora[
        session.folder.study.task(attempt_of(request.node).task).corpus
    ]
    with contextlib.ExitStack() as stack:
        with preparing(session, request.node):
            copy = stack.enter_context(export(corpus))
        yield copy


@pytest.fixture
def study_servers(request: pytest.FixtureRequest, study_export: Export) -> Iterator[AttemptTools]:
    """The tools of the attempt's arm, its MCP servers freshly started and stopped afterwards."""
    session = request.config.stash[SESSION]
    attempt = attempt_of(request.node)
    study = session.folder.study
    corpus = study.task(attempt.task).corpus
    ready = session.ready_for(attempt)
    tools = attempt_tools(
        study,
        study.scenarios[attempt.scenario],
        ready.corpora[corpus],
        ready.facts[corpus],
        places_of(session.folder, session.roots, corpus, Path(study_export.path)),
        study.limits,
    )
    with contextlib.ExitStack() as stack:
        with preparing(session, request.node):
            stack.enter_context(tools)
        yield tools


@pytest.fixture
def study_attempt(
    request: pytest.FixtureRequest, study_export: Export, study_servers: AttemptTools
) -> StudyAttempt:
    """The attempt of this item, ready to run."""
    session = request.config.stash[SESSION]
    return StudyAttempt(
        attempt=attempt_of(request.node),
        _session=session,
        _item=request.node,
        _export=study_export,
        _tools=study_servers,
    )


def running(session: StudySession) -> Run:
    """Return the run of this process, attached to it where it is a worker."""
    if session.run is None:
        from pytest_studyminimal.plugin.attaching import attach  # noqa: PLC0415

        session.run = attach(session)
    return session.run


def attempt_of(item: pytest.Item) -> Attempt:
    """Return the attempt of a study item."""
    attempt = item.callspec.params["study_attempt"]  # type: ignore[attr-defined]
    assert isinstance(attempt, Attempt)
    return attempt


@contextlib.contextmanager
def preparing(session: StudySession, item: pytest.Item) -> Iterator[None]:
    """Turn whatever goes wrong in preparation into one line, recorded as `invalid-setup`.

    A traceback would carry keys and answers in its locals, so it goes to the private log.
    """
    try:
        yield
    except StudyError as error:
        unprepared(session, item, "invalid-setup", str(error))
    except Exception as error:  # noqa: BLE001 - see above
        running(session).log_privately(attempt_of(item), traceback.format_exc())
        unprepared(
            session,
            item,
            "invalid-setup",
            f"internal error: {type(error).__name__} (see the private log)",
        )


def unprepared(session: StudySession, item: pytest.Item, status: Status, reason: str) -> NoReturn:
    """Record an attempt that could not be started, and end its setup with one line."""
    try:
        observation = running(session).unprepared(attempt_of(item), status, reason)
    except StudyError as error:
        _fail(f"{status}: {reason}; and {error}")
    observed(session, item, observation)
    _fail(f"{status}: {observation.reason}")


def observed(session: StudySession, item: pytest.Item, observation: Observation) -> None:
    """Put an attempt's figures on its item."""
    item.stash[OBSERVATION] = observation
    attach(item, of_observation(running(session), session.phase, observation))


def blocked(session: StudySession, item: pytest.Item, reason: str) -> NoReturn:
    """Skip an attempt that is not reached because the run stopped; it is shown as blocked."""
    attach(item, of_blocked(running(session), session.phase, attempt_of(item), reason))
    raise pytest.skip.Exception(f"blocked: {reason}", _use_item_location=True) from None


def record_unreached(session: StudySession, item: pytest.Item, error: BaseException) -> None:
    """Record an attempt that its test's own code kept from running; the run stops there."""
    skipped = isinstance(error, pytest.skip.Exception)
    if (
        OBSERVATION in item.stash
        or skipped
        or not isinstance(error, (Exception, pytest.fail.Exception))
    ):
        return
    run, attempt = running(session), attempt_of(item)
    with contextlib.suppress(StudyError):
        if not run.ledger.has("start", run=run.id, attempt=attempt.id):
            reason = f"the test's own code ended it before it ran: {type(error).__name__}"
            observed(session, item, run.unprepared(attempt, "invalid-setup", reason))


def _fail(reason: str) -> NoReturn:
    # `from None`: the exception being handled may carry keys and answers, and pytest would show it.
    raise pytest.fail.Exception(reason, pytrace=False) from None
