"""What `studyminimal report` does: one run of a study in one format; runs and series are never mixed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.series import Series
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.reports.books import find_ledger
from pytest_studyminimal.reports.document import document
from pytest_studyminimal.reports.page.assembly import as_html
from pytest_studyminimal.reports.renderings import FORMATS
from pytest_studyminimal.reports.showing import newest_run, run_row
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_studyminimal.evidence.records import Record


def report(
    place: Path | None, runs: Sequence[str], kind: str, *, private: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the report of one run and its document: the run named, else the newest full one, else pilot.

    `private` adds the answers, to the page alone. StudyError where there is no ledger or no such run,
    and for several runs, which are never pooled: the line says what differs.
    """
    if private and kind != "html":
        raise UsageRefusedError(f"found --private with --format {kind}, required --format html")
    with Ledger.read(find_ledger(place)) as ledger:
        row = _one_run(ledger, runs)
        seen = document(view(ledger, row.run))
        text = as_html(seen, _answers(ledger, row.run)) if private else FORMATS[kind](seen)
        return text, seen


def _one_run(ledger: Ledger, runs: Sequence[str]) -> Record:
    rows = [run_row(ledger, run) for run in runs]
    for row in rows:
        if row.body["phase"] == "adjudicate":
            judged = row.body["judges"]["run"]
            raise UsageRefusedError(
                f"--run {row.run}: found an adjudication, required the run that it judged: {judged}"
            )
    first, *others = rows or [newest_run(ledger)]
    for other in others:
        differs = _series(first).differences(_series(other))
        if first.body["phase"] != other.body["phase"]:
            differs = (*differs, "phase")
        told = f"they differ in {', '.join(differs)}" if differs else "each has its own order"
        raise UsageRefusedError(
            f"--run: found {first.run} and {other.run}, required one run, since runs are never pooled:"
            f" {told}"
        )
    return first


def _series(row: Record) -> Series:
    return Series.model_validate(
        {name: value for name, value in row.body["series"].items() if name != "id"}
    )


def append_summary(document: dict[str, Any], environ: Mapping[str, str]) -> str | None:
    """Append the Markdown to the file that GITHUB_STEP_SUMMARY names; return what went wrong, if any."""
    name = environ.get("GITHUB_STEP_SUMMARY")
    if not name:
        return None
    try:
        with Path(name).open("a", encoding="utf-8", newline="\n") as file:
            file.write(FORMATS["markdown"](document))
    except OSError as error:
        return f"GITHUB_STEP_SUMMARY: found {error.strerror}, required a file to append to"
    return None


def write_all(document: dict[str, Any], folder: Path) -> None:
    """Write every format of a report into a folder: report.json, .csv, .md and .html."""
    for kind, suffix in (("json", "json"), ("csv", "csv"), ("markdown", "md"), ("html", "html")):
        write(FORMATS[kind](document), folder / f"report.{suffix}", private=False)


def _answers(ledger: Ledger, run: str) -> dict[str, str]:
    return {
        record.attempt: str(record.private["answer"])
        for record in ledger.records(run=run, kind="observation")
        if record.private and record.private.get("answer") is not None
    }


def write(text: str, output: Path, *, private: bool) -> None:
    """Write a report; a private one becomes a new file of mode 0600 in the place of any other."""
    if not private:
        output.write_text(text, encoding="utf-8", newline="\n")
        return
    beside = output.with_name(f".{output.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(beside, flags, 0o600), "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        beside.replace(output)
    finally:
        beside.unlink(missing_ok=True)
