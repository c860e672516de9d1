"""One session object in a StashKey: the study, its order, and the run once the gate has opened it."""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_studyminimal.plugin import fixtures, interrupts, xdist
from pytest_studyminimal.plugin.options import (
    FIXTURES,
    STUDY_FIXTURES,
    is_study_item,
    requested_phase,
    worker_orders,
)
from pytest_studyminimal.plugin.properties import plain
from pytest_studyminimal.plugin.refusals import refuse_marks, refuse_options
from pytest_studyminimal.plugin.reporting import prepare_folder, write_reports
from pytest_studyminimal.plugin.stash import SESSION
from pytest_studyminimal.plugin.terminal import StudyTerminal
from pytest_studyminimal.preflight import Ready, Roots
from pytest_studyminimal.protocol.errors import StudyError, UsageRefusedError
from pytest_studyminimal.protocol.manifest import StudyFolder, is_study_folder, load
from pytest_studyminimal.protocol.records import Attempt
from pytest_studyminimal.protocol.schedule import Phase, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from pytest_studyminimal.judging.docket import Docket
    from pytest_studyminimal.run import Run

Answer = TypeVar("Answer")
UNREADABLE = "!unreadable-study"
_PRIVATE_LOGGERS = ("mcp", "httpx", "httpcore", "anyio")


@dataclass(eq=False)  # pluggy keeps plugins in sets
class StudySession:
    """What this process knows of the study; a plugin that exists only under `--study`."""

    config: pytest.Config
    phase: Phase
    run_id: str
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    folders: dict[Path, StudyFolder] = field(default_factory=dict, repr=False)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    run: Run | None = field(default=None, repr=False)
    ready: Ready | None = field(default=None, repr=False)
    roots: Roots = field(default_factory=lambda: Roots({}))
    _reached: set[str] = field(default_factory=set)
    _docket: Docket | None = field(default=None, repr=False)
    interrupts: interrupts.Interrupts = field(default_factory=interrupts.Interrupts)

    def ready_for(self, attempt: Attempt) -> Ready:
        """Return what preflight found; a worker reads the corpora itself, once."""
        fixtures.running(self)
        assert self.ready is not None, f"{attempt.id} was prepared before the gate"
        return self.ready

    @property
    def distributed(self) -> bool:
        """Whether the attempts run in other processes than this one."""
        return xdist.distributes(self.config)

    @property
    def selected(self) -> tuple[str, ...]:
        """The ids of the attempts that this session's run was to make."""
        return tuple(self.run.row().body["selected"]) if self.run else ()

    def in_order(self, attempt: Attempt) -> bool:
        """Whether every selected attempt before this one was reached; workers share them out."""
        if self.is_worker:
            return True
        self._reached.add(attempt.id)
        before = self.selected[: self.selected.index(attempt.id)]
        return self._reached.issuperset(before)

    @property
    def is_worker(self) -> bool:
        """Whether this is an xdist worker, which attaches to a run and never opens one."""
        return hasattr(self.config, "workerinput")

    @property
    def folder(self) -> StudyFolder:
        """The one study of this session."""
        return next(iter(self.folders.values()))

    @property
    def connection(self) -> str:
        """The id of the connection that this session uses."""
        judge = self.folder.study.adjudicator
        if self.phase == "adjudicate" and judge is not None:
            return judge.connection
        return self.config.getoption("study_connection") or self.folder.study.default_connection

    def attempts(self, folder: StudyFolder) -> tuple[Attempt, ...]:
        """Return the phase's attempts in order."""
        if self.phase == "adjudicate":
            return self.docket_of(folder).attempts()
        connection = self.config.getoption("study_connection")
        if connection and connection not in folder.study.connections:
            known = ", ".join(folder.study.connections)
            raise UsageRefusedError(
                f"--study-connection: found {connection!r}, required one of {known}"
            )
        return plan(folder.study, self.phase, connection)

    def docket_of(self, folder: StudyFolder) -> Docket:
        """Return what this session judges, read once: the ledger may grow meanwhile."""
        if self._docket is None:
            from pytest_studyminimal.plugin.adjudicating import docket_of  # noqa: PLC0415

            self._docket = docket_of(self, folder)
        return self._docket

    def folder_of(self, path: Path) -> StudyFolder:
        """Return the study of a test file's folder, read once."""
        if path not in self.folders:
            self.folders[path] = load(path)
        return self.folders[path]

    def place(self, item: pytest.Item) -> int:
        """Return an item's place in the frozen order."""
        attempt = attempt_of(item)
        return attempt.place if attempt else -1

    # Collection

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        fixture = FIXTURES[self.phase]
        if fixture not in metafunc.fixturenames:
            return
        attempts: tuple[Attempt, ...] = ()
        try:
            attempts = self.attempts(self.folder_of(metafunc.definition.path.parent))
        except StudyError as error:
            # An exception here would be an internal error under xdist: the gate refuses it instead.
            self.problems.append(str(error))
        marked = xdist.placeholder(metafunc.definition) if self.is_worker else None
        shown = () if marked else attempts
        # Function scope: pytest would regroup a wider scope by scenario and break the rotation.
        metafunc.parametrize(
            fixture,
            shown or [marked or UNREADABLE],
            ids=[attempt.id for attempt in shown] or [marked or UNREADABLE],
            indirect=True,
            scope="function",
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        yield
        kept = [item for item in items if is_study_item(item) and "callspec" in vars(item)]
        if dropped := [item for item in items if item not in kept]:
            config.hook.pytest_deselected(items=dropped)
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        session.items.sort(key=self.place)
        if self.is_worker:
            return
        if self.problems:
            raise pytest.UsageError(self.problems[0])
        if session.testsfailed:
            return  # pytest ends here, with its own list of what could not be collected
        if not self.config.option.collectonly and not self.distributed:
            for item in session.items:
                _refused(refuse_marks, item)
            self.open_gate([item.nodeid for item in session.items])

    def open_gate(self, nodeids: list[str]) -> None:
        """Decide once, in the controller, whether this session may spend; UsageError where it may not."""
        if self.run is not None or not nodeids:
            return
        if self.phase == "adjudicate":
            from pytest_studyminimal.plugin.adjudicating import (  # noqa: PLC0415
                pass_adjudication_gate,
            )

            _refused(pass_adjudication_gate, self, nodeids)
        else:
            from pytest_studyminimal.plugin.gate import pass_gate  # noqa: PLC0415

            _refused(pass_gate, self, nodeids)
        self._follow_progress()

    def _follow_progress(self) -> None:
        terminal = self.config.pluginmanager.get_plugin("studyminimal-terminal")
        if terminal is not None and self.run is not None:
            self.run.on_progress = terminal.progress

    def learn_from_ids(self, nodeids: list[str]) -> None:
        """Read the study whose items the workers collected; the controller itself collects nothing."""
        for nodeid in nodeids:
            path = self.config.rootpath / nodeid.partition("::")[0]
            _refused(self.folder_of, path.parent)
        if self.folders:
            _refused(xdist.refuse_sequential, self)
            _refused(xdist.refuse_marked, nodeids)

    # Running

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if (attempt := attempt_of(item)) is not None and self.in_order(attempt):
            item.stash[fixtures.IN_ORDER] = True
        try:
            return (yield)
        finally:
            # Only now is the item reported.
            self.interrupts.release()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        self.interrupts.hold()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        fixtures.require_completed(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.excinfo is not None and attempt_of(item) is not None:
            if call.when != "teardown" and self.run is not None:
                fixtures.record_unreached(self, item, call.excinfo.value)
            call.excinfo = fixtures.public_excinfo(self, item, call.excinfo)
        report = yield
        # An author may record anything; each reporter would write it, or fail, in its own way.
        report.user_properties = plain(report.user_properties)
        return report

    # The end

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        if self.is_worker or self.run is None:
            yield
            return
        from pytest_studyminimal.plugin.ending import end_run  # noqa: PLC0415

        # Before the other plugins' part, so that the closing section tells how the run ended.
        if not self.distributed:
            end_run(self, session)
        try:
            yield
        finally:
            # Of workers it was ended as soon as they were gone, unless another plugin failed before.
            end_run(self, session)
            write_reports(self)

    def pytest_unconfigure(self) -> None:
        self.stack.close()


def attempt_of(item: pytest.Item) -> Attempt | None:
    """Return the attempt of an item, None for other items and for an unreadable study."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    found = (params.get(name) for name in STUDY_FIXTURES)
    return next((one for one in found if isinstance(one, Attempt)), None)


def activate(config: pytest.Config) -> None:
    """Make this session a study session."""
    phase = requested_phase(config)
    orders = worker_orders(config)
    if not orders and config.getoption("study") != phase:
        raise pytest.UsageError(
            f"--study: found {config.getoption('study')!r} from elsewhere beside {phase!r} on the command"
            " line, required the command line alone"
        )
    assert phase in FIXTURES
    session = StudySession(
        config=config,
        phase=phase,  # type: ignore[arg-type]
        run_id=orders["run"] if orders else uuid.uuid4().hex[:12],
    )
    config.stash[SESSION] = session
    if not session.is_worker:
        _choose_default_study(config)
        if not config.option.collectonly:
            _refused(refuse_options, config)
            _refused(xdist.refuse_other_machines, config)
            _refused(prepare_folder, config)
        config.pluginmanager.register(StudyTerminal(session), "studyminimal-terminal")
    session.stack.enter_context(_quiet_loggers())
    session.stack.enter_context(interrupts.terminate_as_interrupt(config, session.interrupts))
    config.pluginmanager.register(session, "studyminimal-session")
    config.pluginmanager.register(fixtures, "studyminimal-fixtures")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(xdist.StudyDistribution(session), "studyminimal-xdist")


def _refused(decide: Callable[..., Answer], *arguments: Any) -> Answer:
    """Return what `decide` decides; its refusal becomes one line and exit status 4."""
    try:
        return decide(*arguments)
    except StudyError as error:
        raise pytest.UsageError(str(error)) from None
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        where = f" ({error.filename})" if error.filename else ""
        raise pytest.UsageError(f"found {why}{where}, required a usable file or program") from None


def _choose_default_study(config: pytest.Config) -> None:
    if config.args_source is type(config).ArgsSource.ARGS:
        return
    if default := str(config.getini("study_default") or ""):
        folder = config.rootpath / default
        if not is_study_folder(folder):
            raise pytest.UsageError(
                f"study_default: found {default!r}, required a folder with a study.toml"
            )
        config.args[:] = [str(folder)]
        return
    here = config.invocation_params.dir
    # Without an ini file pytest may take any directory far above as rootdir: nothing is searched there.
    bases = [here, config.rootpath] if config.inipath else [here]
    found = next((folders for base in bases if (folders := _study_folders(base))), [])
    if len(found) != 1:
        names = ", ".join(os.path.relpath(path, here) for path in found[:5]) or "none"
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        raise pytest.UsageError(
            f"--study: found {names}{more}, required one study folder, named as an argument or as the"
            " ini value study_default"
        )
    config.args[:] = [str(found[0])]


def _study_folders(base: Path) -> list[Path]:
    candidates = [base, *base.glob("*/"), *base.glob("studies/*/")]
    return sorted({path.resolve() for path in candidates if is_study_folder(path)})


@contextlib.contextmanager
def _quiet_loggers() -> Generator[None, None, None]:
    # Their records hold URLs, arguments and results; under json-report they would also be written out.
    loggers = [logging.getLogger(name) for name in _PRIVATE_LOGGERS]
    before = [(logger, logger.propagate) for logger in loggers]
    silence = logging.NullHandler()
    for logger in loggers:
        logger.propagate = False
        logger.addHandler(silence)
    try:
        yield
    finally:
        for logger, propagate in before:
            logger.propagate = propagate
            logger.removeHandler(silence)
