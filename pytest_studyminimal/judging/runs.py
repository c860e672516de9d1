"""A whole run judged again from its kept streams: where today's rule book says something else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.evidence.streams import stream_of
from pytest_studyminimal.judging.streams import Verdict, rejudge
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import LedgerError, UsageRefusedError
from pytest_studyminimal.protocol.frozen import Frozen
from pytest_studyminimal.protocol.records import Ending
from pytest_studyminimal.protocol.study import Study
from pytest_studyminimal.reports.showing import run_row
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_studyminimal.evidence.ledger import Ledger
    from pytest_studyminimal.evidence.records import Record
    from pytest_studyminimal.protocol.records import Observation

_EXPORT = "the export was changed: "


class _End(Frozen):
    ending: Ending
    exit_status: int | None
    stayed: bool
    cut: bool
    wall_s: float
    problem: str | None = None


@dataclass(frozen=True)
class Again:
    """An attempt's recorded verdict beside today's; `now` is None where no stream was kept."""

    observation: Observation
    now: Verdict | None

    @property
    def differs(self) -> tuple[str, ...]:
        """What today's verdict says differently, one line each."""
        if self.now is None:
            return ()
        then = self.observation
        pairs = (
            ("status", then.status, self.now.judgement.status),
            ("reason", then.reason, self.now.judgement.reason),
            ("charged_usd", then.charged_usd, self.now.charged_usd),
        )
        return tuple(f"{name}: was {old}, is {new}" for name, old, new in pairs if old != new)

    def described(self) -> dict[str, Any]:
        """Return both verdicts as plain JSON."""
        then = self.observation
        return {
            "attempt": then.attempt.id,
            "then": {
                "status": then.status,
                "reason": then.reason,
                "charged_usd": money.text(then.charged_usd),
            },
            "now": self.now and self.now.described(),
            "differs": list(self.differs),
        }


def rejudge_run(ledger: Ledger, run: str) -> tuple[Again, ...]:
    """Return every judged attempt of a run with today's verdict; the ledger is only read.

    Raises UsageRefusedError for a run of an API, which keeps no stream to judge.
    """
    row = run_row(ledger, run)
    study = study_of(row)
    connection = study.connections[row.body["connection"]]
    if not connection.is_agent:
        raise UsageRefusedError(
            f"run {row.run}: found transport {connection.transport}, required an agent CLI's"
        )
    found = []
    for line in view(ledger, row.run).lines:
        seen = line.observation
        if seen is None:
            continue
        file = stream_of(ledger.directory, row.run, seen.attempt.id)
        now = None
        # Without an end the session died first, and nobody saw how the process ended.
        if file.is_file() and file.with_suffix(".end.json").exists():
            now = rejudge(
                study,
                connection,
                seen.attempt.scenario,
                file.read_bytes(),
                end=_end_of(file),
                attempt_usd=money.parse_exact(row.body["attempt_usd"]),
                export_changes=_export_changes(seen),
            )
        found.append(Again(seen, now))
    return tuple(found)


def study_of(row: Record) -> Study:
    """Return the manifest that a run was made with. LedgerError where a copy left it out."""
    manifest = (row.private or {}).get("manifest")
    if manifest is None:
        raise LedgerError(f"run {row.run}: found no manifest, required the ledger itself, no copy")
    return Study.model_validate_json(json.dumps(manifest))


def _end_of(file: Path) -> dict[str, Any]:
    end = file.with_suffix(".end.json")
    try:
        return _End.model_validate_json(end.read_bytes()).model_dump()
    except (OSError, ValueError):
        raise LedgerError(
            f"{end}: found no end of a process, required the file that was kept with the stream"
        ) from None


def _export_changes(seen: Observation) -> tuple[str, ...]:
    # What was done to the export is long gone; what was found then still counts.
    told = (problem.partition(": ")[2] for problem in seen.problems)
    return tuple(one.removeprefix(_EXPORT) for one in told if one.startswith(_EXPORT))
