"""What one adjudication session judges: the answers of one run, blind, as a study of packets.

A packet is a task, its prompt the question, and there is one arm without tools. So transports, budget,
ledger and rule book treat a verdict as they treat an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.sessions import is_alive
from pytest_studyminimal.judging.companions import append_companion
from pytest_studyminimal.judging.packets import answers_in_order
from pytest_studyminimal.judging.verdicts import (
    Adjudicator,
    Findings,
    bare,
    parse,
    problem_of,
)
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.records import Attempt
from pytest_studyminimal.protocol.study import Scenario, Task
from pytest_studyminimal.reports.showing import run_row
from pytest_studyminimal.reports.view import view

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_studyminimal.evidence.records import Record
    from pytest_studyminimal.judging.packets import Packet
    from pytest_studyminimal.protocol import study as studies
    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.protocol.records import Transcript
    from pytest_studyminimal.protocol.study import Study
    from pytest_studyminimal.reports.view import RunView


@dataclass(frozen=True)
class Docket:
    """A judged run and which of its packets this adjudicator has not judged before."""

    judge: studies.Adjudicator
    run: RunView
    before: frozenset[str]

    @cached_property
    def packets(self) -> tuple[str, ...]:
        """The ids of the packets to judge, in their blind order."""
        return tuple(name for name in answers_in_order(self.run) if name not in self.before)

    def attempts(self) -> tuple[Attempt, ...]:
        """Return one attempt per packet."""
        return tuple(
            Attempt(
                place=place,
                task=packet,
                scenario="",
                repetition=1,
                connection=self.judge.connection,
            )
            for place, packet in enumerate(self.packets)
        )

    def study(self, study: Study, packets: Iterable[Packet]) -> Study:
        """Return the study whose tasks are these packets, under the adjudicator's own terms."""
        corpus = next(iter(study.corpora))
        # Not validated again: a packet may be longer than a question of a manifest.
        tasks = tuple(
            Task.model_construct(id=one.id, corpus=corpus, question=one.prompt(), kind="packet")
            for one in packets
        )
        budget = study.budget.model_copy(update={"attempt_usd": self.judge.attempt_usd})
        return study.model_copy(
            update={
                "tasks": tasks,
                "scenarios": {"": Scenario()},
                "limits": self.judge.limits,
                "prices": self.judge.prices or study.prices,
                "prompt": type(study.prompt)(),
                "budget": budget,
            }
        )


def adjudicator_of(folder: StudyFolder) -> studies.Adjudicator:
    """Return who the manifest declares. UsageRefusedError where it declares nobody."""
    judge = folder.study.adjudicator
    if judge is None:
        raise UsageRefusedError(
            f"{folder.file}: found no [adjudicator], required one for --study adjudicate; packets for"
            " another judge: studyminimal adjudication export"
        )
    return judge


def docket(folder: StudyFolder, ledger_path: Path, run: str | None, *, rehearsal: bool) -> Docket:
    """Return what is to be judged: of the run named, else of the newest full one; ledgers are only read.

    A rehearsal judges rehearsals and nothing else does. UsageRefusedError where there is no such run,
    it still goes on, or another protocol or answer key made it.
    """
    judge = adjudicator_of(folder)
    if not ledger_path.is_file():
        raise UsageRefusedError(
            f"--study adjudicate: found no ledger at {ledger_path}, required a run to judge:"
            " pytest --study full"
        )
    with Ledger.read(ledger_path) as ledger:
        row = _judged_row(ledger, run, rehearsal=rehearsal)
        if row.body["series"]["protocol"] != folder.digest:
            raise UsageRefusedError(
                f"run {row.run}: found another protocol or answer key in {folder.path}, required those"
                " of the run"
            )
        if not ledger.has("close", run=row.run) and is_alive(ledger.directory, row.run):
            raise UsageRefusedError(f"run {row.run}: found it still going, required one that ended")
        seen = view(ledger, row.run)
    model = folder.study.connections[judge.connection].model
    found = Docket(judge=judge, run=seen, before=_judged_before(seen, model))
    if not found.packets:
        what = f"every answer judged by {model} before" if found.before else "no usable answer"
        raise UsageRefusedError(
            f"run {seen.row.run}: found {what}, required one that {model} has not judged"
        )
    return found


def _judged_row(ledger: Ledger, run: str | None, *, rehearsal: bool) -> Record:
    if run is None:
        rows = [
            row
            for row in ledger.records(kind="run")
            if row.body["phase"] == "full" and row.body["rehearsal"] == rehearsal
        ]
        if not rows:
            kind = "rehearsed full run" if rehearsal else "full run"
            raise UsageRefusedError(
                f"--study adjudicate: found no {kind} in {ledger.path}, required one, or --study-run ID"
            )
        return rows[-1]
    row = run_row(ledger, run)
    if row.body["phase"] == "adjudicate":
        raise UsageRefusedError(f"--study-run {run}: found an adjudication, required a study's run")
    if row.body["rehearsal"] != rehearsal:
        found, required = ("a rehearsal", "--study-rehearse, or a paid run")
        if not row.body["rehearsal"]:
            found, required = (
                "a paid run",
                "a real adjudicator: a scripted one judges no evidence",
            )
        raise UsageRefusedError(f"--study-run {run}: found {found}, required {required}")
    return row


def _judged_before(seen: RunView, model: str) -> frozenset[str]:
    # Judged again until it suits is no judgement: an answer has one verdict of each model.
    hashes = {line.attempt.id: line.observation for line in seen.lines if line.observation}
    return frozenset(
        record.body["packet"]
        for record in seen.verdicts
        if record.body["adjudicator"]["kind"] == "agent"
        and record.body["adjudicator"]["name"] == model
        and record.body["answer_sha256"] == hashes[record.attempt].answer_sha256
    )


@dataclass(frozen=True)
class VerdictReader:
    """Reads the verdicts of one session and keeps them beside the answers; see `run.Reader`."""

    row: Record
    packets: Mapping[str, Packet]
    who: Adjudicator
    facts: Mapping[str, object]

    def problem(self, attempt: Attempt, seen: Transcript) -> str | None:
        """Return why a model's words are no verdict on its packet, as one public line."""
        if not seen.answer_complete:
            return f"no complete verdict (stop reason {seen.stop_reason})"
        found = self._read(attempt, seen.answer)
        return f"malformed verdict: {found}" if isinstance(found, str) else None

    def keep(self, ledger: Ledger, attempt: Attempt, answer: str, problem: str | None) -> None:
        """Append the companion record of a packet."""
        findings: Findings | str = problem or self._read(attempt, answer)
        append_companion(
            ledger, self.row, self.packets[attempt.id], self.who, findings, **self.facts
        )

    def _read(self, attempt: Attempt, answer: str) -> Findings | str:
        packet = self.packets[attempt.id]
        try:
            findings = parse(bare(answer), Findings)
        except ValueError as error:
            return str(error)
        if findings.packet != packet.id:
            return f"found a verdict on another packet, required {packet.id}"
        return problem_of(findings, len(packet.propositions)) or findings
