"""Packets out, verdicts in: blind, bound by hash, and kept append-only beside what they judge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.judging.companions import append_companion
from pytest_studyminimal.judging.key import load_key
from pytest_studyminimal.judging.packets import Packet, packets
from pytest_studyminimal.judging.verdicts import Verdict, is_disputed, parse, problem_of, rubric
from pytest_studyminimal.preflight import Roots, check_sources, read_corpora
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.manifest import load
from pytest_studyminimal.reports.books import find_ledger
from pytest_studyminimal.reports.showing import newest_run, run_row
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_studyminimal.evidence.records import Record
    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.reports.view import RunView
    from pytest_studyminimal.workspace.corpus import Corpus


@dataclass(frozen=True)
class Case:
    """A run of a study whose answers can be judged: its ledger's place, and where corpora lie."""

    folder: StudyFolder
    ledger: Path
    run: str | None
    roots: Roots

    def packets(self, ledger: Ledger) -> tuple[Record, tuple[Packet, ...]]:
        """Return the run's row and the packets of its usable answers.

        Raises StudyError for another protocol or key than the run's, and for corpora that are not there.
        """
        row = newest_run(ledger) if self.run is None else run_row(ledger, self.run)
        if row.body["series"]["protocol"] != self.folder.digest:
            raise UsageRefusedError(
                f"run {row.run}: found another protocol or answer key in {self.folder.path}, required"
                " those of the run"
            )
        found, _ = gather(self.folder, self.roots, ledger, view(ledger, row.run))
        return row, found


def gather(
    folder: StudyFolder, roots: Roots, ledger: Ledger, run: RunView
) -> tuple[tuple[Packet, ...], dict[str, Corpus]]:
    """Return the packets of a run's usable answers, and the corpora at their pins.

    Raises StudyError for corpora that are not there, and for a source that is none.
    """
    attempts = tuple(line.attempt for line in run.lines)
    corpora = read_corpora(folder, attempts, roots, checkouts=False)
    key = load_key(folder)
    sources = {task: one.sources for task, one in key.tasks.items()}
    sources = check_sources(folder, corpora, sources)
    return packets(folder, key, run, ledger, corpora, sources), corpora


def case_of(
    study: Path,
    run: str | None,
    ledger: Path | None,
    roots: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
) -> Case:
    """Return a case; StudyError where the study or an option cannot be used."""
    folder = load(study)
    return Case(
        folder=folder,
        ledger=find_ledger(ledger or study),
        run=run,
        roots=Roots.gather(folder, list(roots), environ, cwd),
    )


def export_packets(case: Case) -> list[str]:
    """Return the blind packets as lines of JSON; the ledger is only read."""
    with Ledger.read(case.ledger) as ledger:
        _, found = case.packets(ledger)
    return [json.dumps(packet.blind()) for packet in found]


def import_verdicts(case: Case, text: bytes) -> list[str]:
    """Append every verdict of a file of JSON lines, all or none, and say of each what it is.

    Raises UsageRefusedError naming the line of the first that is malformed, of another answer or key,
    or does not speak of every proposition once.
    """
    with Ledger.open(case.ledger, case.folder.study.id) as ledger:
        row, found = case.packets(ledger)
        by_id = {packet.id: packet for packet in found}
        verdicts = [
            _verdict(number, line, by_id)
            for number, line in enumerate(text.split(b"\n"), start=1)
            if line.strip()
        ]
        if not verdicts:
            raise UsageRefusedError("found no verdict, required one JSON object per line")
        with ledger.transaction():
            for verdict in verdicts:
                append_companion(ledger, row, by_id[verdict.packet], verdict.adjudicator, verdict)
    return [_told(verdict) for verdict in verdicts]


def _verdict(number: int, line: bytes, by_id: Mapping[str, Packet]) -> Verdict:
    def refused(found: str) -> UsageRefusedError:
        return UsageRefusedError(f"line {number}: {found}")

    try:
        verdict = parse(line.decode("utf-8"), Verdict)
    except UnicodeDecodeError:
        raise refused("found no JSON in UTF-8, required a verdict") from None
    except ValueError as error:
        raise refused(str(error)) from None
    packet = by_id.get(verdict.packet)
    if packet is None:
        raise refused(f"packet: found {verdict.packet}, required one of this run's")
    if verdict.answer_sha256 != packet.answer_sha256:
        raise refused("answer_sha256: found another answer's, required the packet's")
    if verdict.key_sha256 != packet.key_sha256:
        raise refused("key_sha256: found another key's, required the packet's")
    if problem := problem_of(verdict, len(packet.propositions)):
        raise refused(problem)
    return verdict


def _told(verdict: Verdict) -> str:
    if is_disputed(verdict):
        return (
            f"{verdict.packet}: disputed: stated {verdict.outcome}, its findings say {rubric(verdict)};"
            " missing"
        )
    return f"{verdict.packet}: {verdict.outcome}"
