"""What `studyminimal judge` does: one stream, or every stream of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_studyminimal.approvals import positive_amount
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.judging.runs import rejudge_run
from pytest_studyminimal.judging.streams import Verdict, judge_alone, rejudge
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.manifest import load
from pytest_studyminimal.protocol.study import Limits
from pytest_studyminimal.protocol.text import dollars, one_line
from pytest_studyminimal.reports.showing import run_row
from pytest_studyminimal.transports.readers import ALONE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_studyminimal.protocol.study import Connection, Study

Printed = tuple[dict[str, Any], list[str]]


def judged(
    *,
    stream: Path | None,
    study: Path | None,
    task: str | None,
    scenario: str | None,
    exit_status: int,
    study_connection: str | None,
    study_attempt_budget_usd: str | None,
    ledger: Path | None,
    run: str | None,
    transport: str | None = None,
) -> Printed:
    """Return what to print, as JSON and as lines. StudyError with one line for bad input."""
    if ledger is not None or run is not None:
        if ledger is None or run is None or stream is not None:
            raise UsageRefusedError("judge: required --ledger with --run, and then no STREAM")
        return _run(ledger, run)
    if stream is not None and study is None and transport is not None:
        return _alone(stream, transport, exit_status)
    missing = [
        name
        for name, value in (
            ("STREAM", stream),
            ("--study", study),
            ("--task", task),
            ("--scenario", scenario),
        )
        if value is None
    ]
    if stream is None or study is None or task is None or scenario is None:
        raise UsageRefusedError(
            f"judge: found no {', '.join(missing)}, required STREAM --study DIR --task T --scenario S,"
            f" or STREAM --transport {'|'.join(ALONE)}, or --ledger PATH --run ID"
        )
    manifest = load(study).study
    _known("--task", task, [one.id for one in manifest.tasks])
    _known("--scenario", scenario, manifest.scenarios)
    reserved = positive_amount("--study-attempt-budget-usd", study_attempt_budget_usd)
    connection = _connection(manifest, study_connection)
    verdict = rejudge(
        manifest,
        connection,
        scenario,
        _read(stream),
        end={"exit_status": exit_status},
        attempt_usd=reserved or manifest.attempt_usd(connection),
    )
    document = {"task": task, "scenario": scenario, **verdict.described()}
    return document, verdict_lines(verdict)


def _alone(stream: Path, transport: str, exit_status: int) -> Printed:
    _known("--transport", transport, ALONE)
    verdict = judge_alone(
        transport,
        _read(stream),
        end={"exit_status": exit_status},
        most_bytes=Limits().stdout_bytes,
    )
    return {"transport": transport, **verdict.described()}, verdict_lines(verdict)


def _known(option: str, value: str, names: Iterable[str]) -> None:
    if value not in names:
        raise UsageRefusedError(
            f"{option}: found {one_line(value, 60)!r}, required one of {', '.join(names)}"
        )


def _connection(study: Study, name: str | None) -> Connection:
    if name is not None:
        _known("--study-connection", name, study.connections)
        return study.connections[name]
    agents = [one for one in study.connections.values() if one.is_agent]
    return agents[0] if agents else study.connections[study.default_connection]


def _read(stream: Path) -> bytes:
    try:
        return stream.read_bytes()
    except (OSError, ValueError) as error:
        why = (getattr(error, "strerror", None) or "an unusable name").lower()
        raise UsageRefusedError(f"{stream}: found {why}, required a readable stream") from None


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict as lines for people."""
    found = verdict.described()
    usage = verdict.transcript.usage
    more = "" if found["usage_complete"] else " (incomplete)"
    lines = [f"status    {found['status']}"]
    if found["reason"]:
        lines.append(f"reason    {found['reason']}")
    lines += [
        (
            f"usage     {usage.input_tokens:,} in, {usage.output_tokens:,} out,"
            f" {usage.cache_read_tokens:,} cache read, {usage.cache_write_tokens:,} cache write{more}"
        ),
        f"reported  {_usd(found['reported_cost_usd'])}",
        f"computed  {_usd(found['computed_cost_usd'])}{_basis(found['cost_basis'])}",
        f"charged   {_usd(found['charged_usd'])}",
    ]
    lines += [f"problem   {problem}" for problem in found["problems"]]
    lines += [
        f"unknown   {name}: {times} events" for name, times in found["unknown_events"].items()
    ]
    return lines


def _usd(amount: str | None) -> str:
    return "unknown" if amount is None else dollars(amount)


def _basis(basis: str | None) -> str:
    return f" ({basis})" if basis else ""


def _run(ledger_path: Path, run: str) -> Printed:
    with Ledger.read(ledger_path) as ledger:
        row = run_row(ledger, run)
        found = rejudge_run(ledger, row.run)
    lines = []
    for one in found:
        now = (
            "not judged again, its end was not seen"
            if one.now is None
            else one.now.judgement.status
        )
        same = "unchanged" if one.now is not None and not one.differs else "; ".join(one.differs)
        lines.append(f"{one.observation.attempt.id}: {now}{f' · {same}' if same else ''}")
    differing = sum(bool(one.differs) for one in found)
    lines.append(f"run {row.run}: {len(found)} judged, {differing} differ; the ledger is unchanged")
    document = {"run": row.run, "attempts": [one.described() for one in found]}
    return document, lines
