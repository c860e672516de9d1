"""What a study's test function asks for: a budget, a fresh export, fresh servers, one attempt."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_studyminimal.plugin.options import STUDY_FIXTURES
from pytest_studyminimal.plugin.properties import attach, of_blocked, of_observation
from pytest_studyminimal.plugin.stash import SESSION
from pytest_studyminimal.preflight import places_of
from pytest_studyminimal.protocol.errors import (
    BudgetRefusedError,
    RunStoppedError,
    StudyError,
)
from pytest_studyminimal.transports.messages import first_request_bytes
from pytest_studyminimal.workspace.corpus import NOTHING
from pytest_studyminimal.workspace.export import Export, export
from pytest_studyminimal.workspace.toolbox import AttemptTools, attempt_tools, no_tools
from pytest_studyminimal.workspace.watch import Surroundings
from pytest_studyminimal.workspace.workplace import Workplace, empty_workplace, workplace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.protocol.records import Attempt, Observation, Status, ToolDefinition
    from pytest_studyminimal.run import Run

IN_ORDER: pytest.StashKey[bool] = pytest.StashKey()
OBSERVATION: pytest.StashKey[Observation | None] = pytest.StashKey()
"""What became of an item's attempt; None where it was not reached because the run stopped."""


@dataclass(frozen=True)
class StudyBudget:
    """The session's budget: it refuses an item before anything of it is prepared."""

    _session: StudySession = field(repr=False)

    def admit(self, item: pytest.Item) -> None:
        """Let an item's attempt be prepared, or end its setup: blocked by the cap or by a stopped run."""
        attempt = attempt_of(item)
        run = running(self._session)
        try:
            run.admit(attempt, self._first_request_bytes(run, attempt))
        except RunStoppedError as stopped:
            blocked(self._session, item, str(stopped))
        except BudgetRefusedError as refused:
            unprepared(self._session, item, "blocked", str(refused))
        if not item.stash.get(IN_ORDER, False):
            unprepared(
                self._session, item, "invalid-setup", "it was reached out of the frozen order"
            )

    def _first_request_bytes(self, run: Run, attempt: Attempt) -> int | None:
        if run.terms.connection.is_agent:
            return None
        return first_request_bytes(
            run.terms.assignment(attempt),
            self._definitions(attempt),
            temperature=run.terms.connection.temperature,
        )

    def _definitions(self, attempt: Attempt) -> tuple[ToolDefinition, ...]:
        if not attempt.scenario:
            return ()
        return self._session.ready_for(attempt).offer(self._session.folder, attempt).definitions


@dataclass
class StudyAttempt:
    """One attempt of the study, or one adjudication; `run()` makes it, once."""

    attempt: Attempt
    _session: StudySession = field(repr=False)
    _item: pytest.Item = field(repr=False)
    _export: Export = field(repr=False)
    _tools: AttemptTools | Workplace = field(repr=False)

    def run(self) -> Observation:
        """Run the attempt and return its observation; fails the test unless it completed."""
        run = running(self._session)
        ready = self._session.ready_for(self.attempt)
        judges = not self.attempt.scenario
        watch = None if judges else ready.watch(self._session.folder, self.attempt)
        try:
            observation = run.attempt(self.attempt, Surroundings(self._export, watch), self._tools)
        except RunStoppedError as stopped:
            blocked(self._session, self._item, str(stopped))
        observed(self._session, self._item, observation)
        require_completed(self._item)
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
def study_servers(
    request: pytest.FixtureRequest, study_export: Export
) -> Iterator[AttemptTools | Workplace]:
    """The tools of the attempt's arm: fresh MCP servers, or what an agent CLI needs to start them."""
    session = request.config.stash[SESSION]
    tools = _tools_of(session, attempt_of(request.node), study_export)
    with contextlib.ExitStack() as stack:
        with preparing(session, request.node):
            stack.enter_context(tools)
        yield tools


def _tools_of(
    session: StudySession, attempt: Attempt, study_export: Export
) -> AttemptTools | Workplace:
    study, ready = session.folder.study, session.ready_for(attempt)
    corpus = study.task(attempt.task).corpus
    scenario, facts = study.scenarios[attempt.scenario], ready.facts[corpus]
    places = places_of(session.folder, session.roots, corpus, Path(study_export.path))
    connection = running(session).terms.connection
    if connection.is_agent:
        denied = ready.denied(session.folder)
        return workplace(study, scenario, facts, places, denied=denied, agent_env=connection.env)
    return attempt_tools(study, scenario, ready.corpora[corpus], facts, places, study.limits)


@pytest.fixture
def study_attempt(
    request: pytest.FixtureRequest,
    study_export: Export,
    study_servers: AttemptTools | Workplace,
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


@pytest.fixture
def study_adjudication(
    request: pytest.FixtureRequest, study_budget: StudyBudget
) -> Iterator[StudyAttempt]:
    """One blind packet for the adjudicator, in a fresh context: an empty folder and no tools."""
    session = request.config.stash[SESSION]
    study_budget.admit(request.node)
    is_agent = running(session).terms.connection.is_agent
    with contextlib.ExitStack() as stack:
        with preparing(session, request.node):
            folder = stack.enter_context(export(NOTHING))
            tools = empty_workplace(folder.path) if is_agent else no_tools()
            stack.enter_context(tools)
        yield StudyAttempt(
            attempt=attempt_of(request.node),
            _session=session,
            _item=request.node,
            _export=folder,
            _tools=tools,
        )


def running(session: StudySession) -> Run:
    """Return the run of this process, attached to it where it is a worker."""
    if session.run is None:
        from pytest_studyminimal.plugin.attaching import attach  # noqa: PLC0415

        session.run = attach(session)
    return session.run


def attempt_of(item: pytest.Item) -> Attempt:
    """Return the attempt of a study item."""
    params = item.callspec.params  # type: ignore[attr-defined]
    return next(params[name] for name in STUDY_FIXTURES if name in params)  # type: ignore[no-any-return]


@contextlib.contextmanager
def preparing(session: StudySession, item: pytest.Item) -> Iterator[None]:
    """Record whatever goes wrong in preparation as `invalid-setup`, with one line."""
    try:
        yield
    except StudyError as error:
        unprepared(session, item, "invalid-setup", str(error))
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - its locals are private
        running(session).log_privately(item.name, traceback.format_exc())
        unprepared(session, item, "invalid-setup", _private(error))


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
    item.stash[OBSERVATION] = None
    attach(item, of_blocked(running(session), session.phase, attempt_of(item), reason))
    raise pytest.skip.Exception(f"blocked: {reason}", _use_item_location=True) from None


def require_completed(item: pytest.Item) -> None:
    """Fail an item whose attempt did not complete, also where its test caught the failure."""
    if OBSERVATION not in item.stash:
        _fail("the test ended without study_attempt.run()")
    observation = item.stash[OBSERVATION]
    if observation is not None and observation.status != "completed":
        _fail(f"{observation.status}: {observation.reason}")


def record_unreached(session: StudySession, item: pytest.Item, error: BaseException) -> None:
    """Record an attempt that its test's own code kept from running; the run stops there."""
    ended = (Exception, pytest.fail.Exception, pytest.skip.Exception)
    if OBSERVATION in item.stash or not isinstance(error, ended):
        return
    run, attempt = running(session), attempt_of(item)
    with contextlib.suppress(StudyError):
        stopped = run.ledger.has("stop", run=run.id)
        if not stopped and not run.ledger.has("start", run=run.id, attempt=attempt.id):
            reason = f"the test's own code ended it before it ran: {type(error).__name__}"
            observed(session, item, run.unprepared(attempt, "invalid-setup", reason))


def public_excinfo(
    session: StudySession, item: pytest.Item, excinfo: pytest.ExceptionInfo[BaseException]
) -> pytest.ExceptionInfo[BaseException]:
    """Return what pytest may show of an exception: one line where our own frames are in its traceback.

    Their locals hold keys, prompts and answers, so the traceback goes to the private log. What an
    author's test raised by itself is left as it is.
    """
    error = excinfo.value
    shown = isinstance(error, pytest.skip.Exception) or getattr(error, "pytrace", True) is False
    if shown or not _has_own_frames(error):
        return excinfo
    if session.run is not None and not isinstance(error, StudyError):
        text = "".join(traceback.format_exception(error))
        session.run.log_privately(item.name, text)
    try:
        _fail(str(error) if isinstance(error, StudyError) else _private(error))
    except pytest.fail.Exception:
        return pytest.ExceptionInfo.from_current()


def _has_own_frames(error: BaseException | None) -> bool:
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            module = str(frame.f_globals.get("__name__", ""))
            # Every exception of an item passes the hooks of `session`, whose locals hold nothing.
            if module.startswith("pytest_studyminimal.") and not module.endswith(".session"):
                return True
        if isinstance(error, BaseExceptionGroup) and any(map(_has_own_frames, error.exceptions)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _private(error: BaseException) -> str:
    return f"internal error: {type(error).__name__} (see the private log)"


def _fail(reason: str) -> NoReturn:
    # `from None`: the exception being handled may carry keys and answers, and pytest would show it.
    raise pytest.fail.Exception(reason, pytrace=False) from None
