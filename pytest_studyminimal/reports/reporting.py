"""What `studyminimal report` does: one run of a study in one format; runs and series are never mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.reports.books import find_ledger
from pytest_studyminimal.reports.document import document
from pytest_studyminimal.reports.renderings import FORMATS
from pytest_studyminimal.reports.showing import newest_run, run_row
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from pathlib import Path


def report(place: Path | None, run: str | None, kind: str) -> str:
    """Return the report of one run: the one named, else the newest full run, else the newest pilot.

    StudyError where there is no ledger or no such run.
    """
    with Ledger.read(find_ledger(place)) as ledger:
        row = newest_run(ledger) if run is None else run_row(ledger, run)
        return FORMATS[kind](document(view(ledger, row.run)))
