"""Under pytest-xdist: the controller opens the run, pairs stay together, a crash ends the run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import pytest

from pytest_studyminimal.plugin.properties import plain
from pytest_studyminimal.plugin.refusals import mark_refused, repeating_mark
from pytest_studyminimal.protocol.errors import UsageRefusedError

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_studyminimal.plugin.session import StudySession

_HERE = re.compile(r"([0-9]+\*)?popen")
_MARKED = "!marked-"


def distributes(config: pytest.Config) -> bool:
    """Whether this session's items run in other processes."""
    return getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput")


class StudyDistribution:
    """The hooks that xdist adds; registered only where xdist is."""

    def __init__(self, session: StudySession) -> None:
        self.session = session
        self._up: list[Any] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        orders = {"phase": self.session.phase, "run": self.session.run_id}
        node.workerinput["studyminimal"] = json.dumps(orders)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self, node: Any) -> None:
        self._up.append(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if node in self._up:
            self._up.remove(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        # Only the workers collect, so this is the controller's first look at the plan.
        session = self.session
        if session.run is not None:
            return
        session.learn_from_ids(ids)
        session.open_gate(list(ids))
        self._tell(node.config)

    def _tell(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        terminal = config.pluginmanager.get_plugin("studyminimal-terminal")
        if reporter is None or terminal is None or self.session.run is None:
            return
        reporter.write_line("")
        for line in terminal.opening_lines():
            reporter.write_line(line)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        return pairs_scheduler(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        from pytest_studyminimal.plugin.crashes import record_crash  # noqa: PLC0415

        record_crash(self.session, crashitem, report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        # What xdist cannot send ends the session, in a way that may even look like success.
        return plain((yield))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        # xdist reports a crashed item once; json-report reads properties from a teardown report only.
        if report.when != "???" or self.session.is_worker:
            return
        teardown = pytest.TestReport(
            nodeid=report.nodeid,
            location=report.location,
            keywords={},
            outcome="passed",
            longrepr=None,
            when="teardown",
            user_properties=report.user_properties,
        )
        teardown.node = report.node  # type: ignore[attr-defined]
        self.session.config.hook.pytest_runtest_logreport(report=teardown)

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self) -> None:
        # xdist would wait 5 s before it interrupts a worker that is in an attempt.
        for node in self._up:
            with contextlib.suppress(OSError):
                os.kill(node.gateway._rinfo().pid, signal.SIGTERM)  # noqa: SLF001

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # xdist's own part has waited for the workers; pytest's closing section comes after this.
        if not self.session.is_worker:
            from pytest_studyminimal.plugin.ending import end_run  # noqa: PLC0415

            end_run(self.session, session)


def pairs_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler that keeps all arms of a task × repetition on one worker, in their order.

    xdist's own grouping starts a crashed item again, and hangs in half of the crash positions: here a
    crashed item is done, and two items stay queued per worker.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415

    class Pairs(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            name = nodeid.rpartition("[")[2].removesuffix("]")
            task, _, rest = name.partition(":")
            # A packet is alone: p01.
            return f"{task}:{rest.rpartition(':')[2]}"

        def remove_node(self, node: Any) -> Any:
            workload = self.assigned_work.pop(node)
            crashed = _first_unfinished(workload)
            if crashed is None:
                return None
            left = {scope: unit for scope, unit in workload.items() if not all(unit.values())}
            self.workqueue.update(left)
            for other in list(self.assigned_work):
                self._reschedule(other)
            return crashed

        def _reschedule(self, node: Any) -> None:
            if node.shutting_down:
                return
            while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
                self._assign_work_unit(node)
            if not self.workqueue:
                node.shutdown()

    return Pairs(config, log)


def _first_unfinished(workload: dict[str, dict[str, bool]]) -> str | None:
    """Return the item in which a worker died, marked as done so that it is never started again."""
    for unit in workload.values():
        for name, done in unit.items():
            if not done:
                unit[name] = True
                return name
    return None


def placeholder(definition: pytest.Item) -> str | None:
    """Return an id in place of a marked test's attempts: ids are all that a controller sees of items."""
    name = repeating_mark(definition)
    return name and f"{_MARKED}{name}"


def refuse_marked(nodeids: list[str]) -> None:
    """Refuse tests that a worker has shown to be marked."""
    for nodeid in nodeids:
        test, separator, name = nodeid.rpartition(f"[{_MARKED}")
        if separator:
            raise mark_refused(test.rpartition("::")[2], name.removesuffix("]"))


def refuse_other_machines(config: pytest.Config) -> None:
    """Refuse workers that are not plain children: all of them share this machine's ledger."""
    for spec in getattr(config.option, "tx", None) or ():
        if not _HERE.fullmatch(spec):
            raise UsageRefusedError(
                f"--tx: found {spec!r}, required popen: every worker shares this machine's ledger"
            )
    for name, option in (("px", "--px"), ("rsyncdir", "--rsyncdir")):
        if getattr(config.option, name, None):
            raise UsageRefusedError(
                f"{option}: found with --study, required without it:"
                " every worker shares this machine's ledger"
            )


def refuse_sequential(session: StudySession) -> None:
    """Refuse `-n` for a study whose attempts must run one after the other."""
    # Of verdicts nobody compares the time.
    timed = session.phase != "adjudicate"
    if distributes(session.config) and timed and not session.folder.study.schedule.parallel:
        raise UsageRefusedError(
            f"-n: found with study {session.folder.study.id}, required schedule.parallel = true in its"
            " study file: attempts side by side would make timing a lie"
        )
