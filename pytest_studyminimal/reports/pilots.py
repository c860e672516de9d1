"""Pilots in a ledger: what a full run needs before it, and what the pilot measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.series import Series
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.text import dollars
from pytest_studyminimal.reports.summary import extrapolation, minutes
from pytest_studyminimal.reports.view import RunView, view

if TYPE_CHECKING:
    from pytest_studyminimal.evidence.ledger import Ledger


def pilots(ledger: Ledger) -> list[RunView]:
    """Return every pilot of the ledger, newest first."""
    rows = ledger.records(kind="run")
    return [view(ledger, row.run) for row in reversed(rows) if row.body["phase"] == "pilot"]


def completed_pilot(ledger: Ledger, series: Series) -> tuple[RunView | None, tuple[str, ...]]:
    """Return the newest completed pilot of a series; else what differs in the newest of another one."""
    differs: tuple[str, ...] = ()
    for pilot in pilots(ledger):
        if not pilot.completed:
            continue
        stated = dict(pilot.row.body["series"])
        if stated.pop("id") == series.id:
            return pilot, ()
        differs = differs or series.differences(Series.model_validate(stated))
    return None, differs


def pilot_lines(ledger: Ledger) -> list[str]:
    """Return what the newest pilot measured: tokens, dollars, seconds and the extrapolation."""
    for pilot in pilots(ledger):
        seen = [line.observation for line in pilot.lines if line.observation]
        usages = [one.usage for one in seen if one.usage]
        rehearsed = " (a rehearsal)" if pilot.row.body["rehearsal"] else ""
        return [
            (
                f"pilot {pilot.row.run}{rehearsed} measured"
                f" {sum(usage.prompt_tokens for usage in usages):,} tokens in,"
                f" {sum(usage.output_tokens for usage in usages):,} out,"
                f" {dollars(money.text(pilot.charged_usd))},"
                f" {minutes(sum(one.wall_s or 0 for one in seen))}"
            ),
            *extrapolation(pilot)[1:2],
        ]
    return []
