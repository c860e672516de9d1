"""What a person sees: a word per attempt, a live line on a terminal, a closing section."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.text import dollars, one_line
from pytest_studyminimal.reports.summary import heading, seconds_text, summary
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from decimal import Decimal

    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.protocol.records import Attempt

Word = tuple[str, str, tuple[str, dict[str, bool]]]


class StudyTerminal:
    """The terminal side of a study session; lives in the controller."""

    def __init__(self, session: StudySession) -> None:
        self.session = session
        self._done = 0
        self._closing = False

    @functools.cached_property
    def _live(self) -> _LiveLine:
        # pytest's own reporter does not exist yet when this plugin is made.
        return _LiveLine(self.session.config)

    def pytest_report_collectionfinish(self) -> list[str]:
        run = self.session.run
        return self.opening_lines() if run is not None else []

    def opening_lines(self) -> list[str]:
        """Return what is about to be spent, by whom and under which cap."""
        run = self.session.run
        assert run is not None
        body = run.row().body
        cap = dollars(money.text(run.budget.cap_usd()))
        committed = dollars(money.text(run.budget.balance().committed_usd))
        what = "attempts"
        if "judges" in body:
            what = f"answers of run {body['judges']['run']}, judged blind"
        lines = [
            heading(view(run.ledger, run.id)),
            (
                f"{len(body['selected'])} {what} by {body['provider']} model {body['model']}"
                f" under a cap of {cap}, {committed} of it committed"
            ),
        ]
        if body["rehearsal"]:
            lines.append("the model is local and scripted: nothing is paid, nothing is evidence")
        if body["model_is_alias"]:
            lines.append(f"model {body['model']} is an alias: what answers under it may change")
        ready = self.session.ready
        return [*lines, *self.session.notes, *(ready.warnings if ready else ())]

    def pytest_report_teststatus(self, report: Any) -> Word | None:
        properties = dict(getattr(report, "user_properties", ()))
        if "status" not in properties or "study" not in properties or hasattr(report, "wasxfail"):
            return None
        word = properties["status"]
        if report.when == "call" and report.passed:
            return "passed", ".", (f"{word} {_figures(properties)}", {"green": True})
        if report.when in {"setup", "call"} and report.skipped:
            return "skipped", "s", (str(word), {"yellow": True})
        if report.when == "setup" and report.failed:
            return "error", "E", (f"ERROR {word}", {"red": True})
        if report.when == "call" and report.failed:
            # In pytest's own short summary the reason is worth more than the figures.
            figures = "" if self._closing else f" {_figures(properties)}"
            return "failed", "F", (f"FAILED {word}{figures}", {"red": True})
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        run = self.session.run
        if run is not None:
            self._live.begin(nodeid.rpartition("[")[2].removesuffix("]"))
            self.progress(None, money.ZERO)

    def progress(self, _attempt: Attempt | None, charged_usd: Decimal) -> None:
        """Show place, time, dollars and what is next, on a terminal only."""
        run = self.session.run
        if run is None or not self._live.enabled:
            return
        selected = self.session.selected
        next_one = selected[self._done + 1] if self._done + 1 < len(selected) else "the summary"
        spent = dollars(money.text(money.add(self._live.base_usd, charged_usd)))
        self._live.show(f"{self._done + 1}/{len(selected)} · {spent} · next {next_one}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._live.erase()
        if report.when == "teardown":
            self._done += 1
            charged = dict(report.user_properties).get("charged_usd")
            if isinstance(charged, str):
                self._live.base_usd = money.add(self._live.base_usd, money.parse_exact(charged))

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        self._live.erase()
        self._closing = True
        run = self.session.run
        if run is None:
            return
        shown = view(run.ledger, run.id)
        terminalreporter.section(heading(shown))
        verbose = self.session.config.get_verbosity() > 0
        for line in summary(shown, verbose=verbose, ledger=run.ledger.path):
            terminalreporter.write_line(line)


def _figures(properties: dict[str, Any]) -> str:
    parts = []
    for name, unit in (("turns", "turns"), ("tool_calls", "tools")):
        if name in properties:
            parts.append(f"{properties[name]} {unit}")
    if "input_tokens" in properties:
        cached = properties["cache_read_tokens"] + properties["cache_write_tokens"]
        parts.append(f"{properties['input_tokens'] + cached:,} in")
        parts.append(f"{properties['output_tokens']:,} out")
    if "charged_usd" in properties:
        parts.append(dollars(properties["charged_usd"]))
    if "wall_s" in properties:
        parts.append(f"{seconds_text(properties['wall_s'])} s")
    return one_line(" · ".join(parts))


class _LiveLine:
    """Text after the cursor, replaced in place and erased before pytest writes."""

    def __init__(self, config: pytest.Config) -> None:
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        self._writer = config.get_terminal_writer() if reporter else None
        # A terminal without colours can still take a live line; a dumb one cannot.
        terminal = self._writer is not None and self._writer._file.isatty()  # noqa: SLF001
        self.enabled = terminal and os.environ.get("TERM") != "dumb" and config.get_verbosity() >= 0
        self._name = ""
        self._began = time.monotonic()
        self._shown = False
        self.base_usd = money.ZERO

    def begin(self, name: str) -> None:
        self._name = one_line(name, 60)
        self._began = time.monotonic()

    def show(self, text: str) -> None:
        if not self.enabled or self._writer is None:
            return
        seconds = time.monotonic() - self._began
        room = self._writer.fullwidth - self._writer.width_of_current_line - 2
        line = f" {self._name} · {seconds:.0f} s · {text}"[: max(room, 0)]
        # Save the cursor, write dimmed to the right of it, put it back: pytest's own line stays as it is.
        self._raw(f"\x1b7\x1b[K\x1b[2m{line}\x1b[0m\x1b8")
        self._shown = True

    def erase(self) -> None:
        if self._shown:
            self._raw("\x1b[K")
            self._shown = False

    def _raw(self, text: str) -> None:
        # TerminalWriter.write would count these characters into pytest's own column.
        assert self._writer is not None
        stream = self._writer._file  # noqa: SLF001
        encoding = getattr(stream, "encoding", None) or "ascii"
        # What is shown is never worth an attempt: neither an ASCII terminal nor one that went away.
        with contextlib.suppress(OSError, ValueError):
            stream.write(text.encode(encoding, "replace").decode(encoding))
            stream.flush()
