"""What `studyminimal report` does: one run of a study in one format; runs and series are never mixed."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.reports.books import find_ledger
from pytest_studyminimal.reports.document import document
from pytest_studyminimal.reports.page.assembly import as_html
from pytest_studyminimal.reports.renderings import FORMATS
from pytest_studyminimal.reports.showing import newest_run, run_row
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from pathlib import Path


def report(place: Path | None, run: str | None, kind: str, *, private: bool = False) -> str:
    """Return the report of one run: the one named, else the newest full run, else the newest pilot.

    `private` adds the answers, to the page alone. StudyError where there is no ledger or no such run.
    """
    if private and kind != "html":
        raise UsageRefusedError(f"found --private with --format {kind}, required --format html")
    with Ledger.read(find_ledger(place)) as ledger:
        row = newest_run(ledger) if run is None else run_row(ledger, run)
        seen = document(view(ledger, row.run))
        return as_html(seen, _answers(ledger, row.run)) if private else FORMATS[kind](seen)


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
