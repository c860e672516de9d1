"""What `studyminimal show` tells of a run: its attempts, or one attempt call by call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import platformdirs

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.streams import stream_of
from pytest_studyminimal.protocol.errors import LedgerError, UsageRefusedError
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.reports.calls import step_lines, steps
from pytest_studyminimal.reports.summary import attempt_table, heading
from pytest_studyminimal.reports.view import RunView, view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_studyminimal.evidence.records import Record
    from pytest_studyminimal.reports.view import Line

Printed = tuple[dict[str, Any], list[str]]


def run_row(ledger: Ledger, run: str) -> Record:
    """Return the record that opened a run, by its id or a beginning that names one run alone."""
    rows = ledger.records(kind="run")
    found = [row for row in rows if run and row.run.startswith(run)]
    if len(found) != 1:
        known = ", ".join(row.run for row in rows[-5:]) or "none"
        what = (
            f"{len(found)} runs named {one_line(run, 40)!r}"
            if found
            else f"no run {one_line(run, 40)!r}"
        )
        raise UsageRefusedError(f"{ledger.path}: found {what}, required one of: {known}")
    return found[0]


def newest_run(ledger: Ledger) -> Record:
    """Return the newest full run's row, else the newest pilot's. UsageRefusedError where there is none."""
    rows = [row for row in ledger.records(kind="run") if row.body["phase"] != "adjudicate"]
    if not rows:
        raise UsageRefusedError(f"{ledger.path}: found no run, required one")
    full = [row for row in rows if row.body["phase"] == "full"]
    return (full or rows)[-1]


def shown_run(name: str, ledger_path: Path | None, *, private: bool) -> Printed:
    """Return what to print of RUN or RUN:ATTEMPT, as JSON and as lines.

    Texts, arguments and results only where `private`. StudyError with one line for bad input.
    """
    run, _, attempt = name.partition(":")
    path = ledger_path or _ledger_with(run)
    with Ledger.read(path) as ledger:
        row = run_row(ledger, run)
        seen = view(ledger, row.run)
        chosen = [line for line in seen.lines if not attempt or line.attempt.id == attempt]
        if not chosen:
            known = ", ".join(line.attempt.id for line in seen.lines)
            raise UsageRefusedError(
                f"run {row.run}: found no attempt {one_line(attempt, 80)!r}, required one of: {known}"
            )
        return _document(ledger, seen, chosen, private=private), [
            *_lines(ledger, seen, chosen, private=private)
        ]


def _ledger_with(run: str) -> Path:
    folder = platformdirs.user_state_path("studyminimal")
    for path in sorted(folder.glob("*/ledger.sqlite3")):
        try:
            with Ledger.read(path) as ledger:
                run_row(ledger, run)
        except (LedgerError, UsageRefusedError):
            continue
        return path
    raise UsageRefusedError(
        f"found no run {one_line(run, 40)!r} under {folder}, required --ledger PATH"
    )


def _stream(ledger: Ledger, run: str, line: Line) -> list[bytes] | None:
    file = stream_of(ledger.directory, run, line.attempt.id)
    return file.read_bytes().split(b"\n") if file.is_file() else None


def _document(
    ledger: Ledger, seen: RunView, chosen: list[Line], *, private: bool
) -> dict[str, Any]:
    def plain(step: dict[str, Any]) -> dict[str, Any]:
        size = len(step.get("text", "").encode("utf-8", "replace"))
        told = {name: value for name, value in step.items() if private or name != "text"}
        return {**told, "bytes": size}

    attempts = []
    for line in chosen:
        lines = _stream(ledger, seen.row.run, line)
        observation = line.observation
        attempts.append(
            {
                "attempt": line.attempt.id,
                "status": line.status,
                "observation": observation
                and observation.model_dump(mode="json", exclude_none=True),
                "steps": None if lines is None else [plain(step) for step in steps(lines)],
            }
        )
    return {"run": seen.row.run, "rehearsal": seen.row.body["rehearsal"], "attempts": attempts}


def _lines(ledger: Ledger, seen: RunView, chosen: list[Line], *, private: bool) -> Iterator[str]:
    yield f"{heading(seen)} · run {seen.row.run}"
    yield from attempt_table(chosen)
    for line in chosen:
        if line.observation is None:
            continue
        yield ""
        yield f"{line.attempt.id}: {line.status}"
        for problem in line.observation.problems[1:]:
            yield f"      also {problem}"
        lines = _stream(ledger, seen.row.run, line)
        if lines is None:
            yield "      no transcript was kept"
        else:
            yield from step_lines(steps(lines), private=private)
