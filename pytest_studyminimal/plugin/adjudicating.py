"""The gate of an adjudication, and how a worker joins one: the same run, over packets."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_studyminimal.approvals import Cap, decide_adjudication_cap
from pytest_studyminimal.evidence.budget import Budget, cap_of
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.sessions import alive
from pytest_studyminimal.evidence.uninterrupted import interrupts_wait
from pytest_studyminimal.judging.adjudication import gather
from pytest_studyminimal.judging.docket import Docket, VerdictReader, adjudicator_of, docket
from pytest_studyminimal.judging.packets import seed_of
from pytest_studyminimal.judging.verdicts import Adjudicator
from pytest_studyminimal.plugin.gate import (
    close_dead,
    one_study,
    refuse_ledger_inside,
    selection,
)
from pytest_studyminimal.plugin.opening import (
    agent_row,
    effective_connection,
    ledger_path_of,
    roots_of,
    row_of,
    series_of,
    site_of,
    terms_of,
)
from pytest_studyminimal.plugin.options import on_command_line
from pytest_studyminimal.preflight import Ready
from pytest_studyminimal.protocol import money, prices
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.run import Run, Terms
from pytest_studyminimal.transports.open import open_transport
from pytest_studyminimal.transports.requests import first_request_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from pytest_studyminimal.judging.packets import Packet
    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.protocol.records import Attempt
    from pytest_studyminimal.transports.open import Opened

_LONGEST_ARGUMENT_BYTES = 120_000
"""What Linux takes as one argument of a process is 128 KiB, and a CLI gets its prompt as one."""


def docket_of(session: StudySession, folder: StudyFolder) -> Docket:
    """Return what this session judges, read from the ledger once."""
    adjudicator_of(folder)
    connection = effective_connection(session, folder)
    return docket(
        folder,
        ledger_path_of(session, folder),
        session.config.getoption("study_run"),
        rehearsal=connection.provider == "rehearsal",
    )


def pass_adjudication_gate(session: StudySession, nodeids: list[str]) -> None:
    """Open the run of this session's adjudications; StudyError with one line where it may not start."""
    folder = one_study(session)
    attempts = session.attempts(folder)
    selected = selection(nodeids, attempts)
    if session.config.getoption("study_connection") is not None:
        raise UsageRefusedError(
            "--study-connection: found with --study adjudicate, required without it: the manifest"
            " declares who judges"
        )
    roots = roots_of(session, folder)
    path = ledger_path_of(session, folder)
    refuse_ledger_inside(path, roots)
    connection = effective_connection(session, folder)
    opened = session.stack.enter_context(open_transport(connection, site_of(session, folder)))
    ledger = session.stack.enter_context(Ledger.open(path, folder.study.id))
    close_dead(session, ledger)
    session.roots = roots
    terms, ready = _terms(session, folder, ledger)
    _refuse_impossible(terms, [one for one in attempts if one.id in selected])
    _open(session, folder, terms, ready, opened, ledger, attempts, selected)


def _terms(session: StudySession, folder: StudyFolder, ledger: Ledger) -> tuple[Terms, Ready]:
    judged = session.docket_of(folder)
    packets, corpora = gather(folder, session.roots, ledger, judged.run)
    connection = effective_connection(session, folder)
    study = judged.study(folder.study, packets)
    terms = terms_of(session, study, connection, "", judged.judge.attempt_usd)
    reader = _reader(session, judged, packets, terms)
    return replace(terms, reader=reader), Ready(corpora=corpora, facts={})


def _reader(
    session: StudySession, judged: Docket, packets: Sequence[Packet], terms: Terms
) -> VerdictReader:
    row, model = judged.run.row, terms.connection.model
    return VerdictReader(
        row=row,
        packets={packet.id: packet for packet in packets},
        who=Adjudicator(kind="agent", name=model, session=session.run_id),
        facts={
            "transport": terms.connection.transport,
            "same_model": model == row.body["model"],
            "rehearsal": terms.rehearsal,
        },
    )


def _refuse_impossible(terms: Terms, attempts: Sequence[Attempt]) -> None:
    """Refuse before any money what could not be asked: a packet too large, or dearer than its cap."""
    for attempt in attempts:
        if (found := _impossible(terms, attempt)) is not None:
            raise UsageRefusedError(f"packet {attempt.id}: {found}")


def _impossible(terms: Terms, attempt: Attempt) -> str | None:
    size, most = (
        len(terms.study.task(attempt.task).question.encode()),
        terms.study.limits.prompt_bytes,
    )
    if size > most:
        return f"found {size} bytes, required at most {most} (adjudicator.limits.prompt_bytes)"
    if terms.connection.is_agent:
        if size <= _LONGEST_ARGUMENT_BYTES:
            return None
        return (
            f"found {size} bytes, required at most {_LONGEST_ARGUMENT_BYTES} with an agent CLI, whose"
            " prompt is one argument of its process"
        )
    needed = _first_reservation_usd(terms, attempt)
    if needed <= terms.attempt_usd:
        return None
    return (
        f"found {money.text(needed)} USD to reserve for its one call, required at most"
        f" {money.text(terms.attempt_usd)} (adjudicator.attempt_usd)"
    )


def _first_reservation_usd(terms: Terms, attempt: Attempt) -> Decimal:
    size = first_request_bytes(
        terms.assignment(attempt), (), temperature=terms.connection.temperature
    )
    tokens = terms.study.limits.output_tokens
    return prices.reservation(terms.upper, request_bytes=size, output_tokens=tokens)


def _open(
    session: StudySession,
    folder: StudyFolder,
    terms: Terms,
    ready: Ready,
    opened: Opened,
    ledger: Ledger,
    attempts: tuple[Attempt, ...],
    selected: tuple[str, ...],
) -> None:
    judged = session.docket_of(folder).run.row
    series = series_of(session, folder, terms, ready, opened)
    terms = replace(terms, series=series.id)
    cap = _cap(session, folder, ledger, judged.account)
    session.ready = ready
    session.stack.enter_context(alive(ledger, session.run_id))
    budget = Budget(ledger, judged.account, session.run_id)
    body = row_of(session, folder, terms, series, attempts, selected, ready)
    body |= agent_row(folder, terms, ready, opened)
    body |= {
        "scenarios": [],
        "arms": {},
        "judges": {"run": judged.run, "order_seed": seed_of(judged.run)},
    }
    run = Run(
        id=session.run_id, terms=terms, ledger=ledger, budget=budget, transport=opened.transport
    )
    manifest = folder.study.model_dump(mode="json", by_alias=True, exclude_unset=True)
    with interrupts_wait():
        with ledger.transaction():
            private = {"manifest": manifest}
            ledger.append(
                "run", account=judged.account, run=session.run_id, body=body, private=private
            )
            if cap.usd != cap_of(ledger, judged.account, session.run_id):
                budget.approve(cap.usd, phase=session.phase, series=series.id, source=cap.source)
        session.run = run


def _cap(session: StudySession, folder: StudyFolder, ledger: Ledger, account: str) -> Cap:
    """Return the cap last approved for the account, less where that is stated, more where approved."""
    return decide_adjudication_cap(
        folder.study,
        cap_of(ledger, account, session.run_id),
        session.config.getoption("study_budget_usd"),
        os.environ,
        raises=on_command_line(session.config, "--approve-budget") is not None,
    )


def join(session: StudySession, folder: StudyFolder, ledger: Ledger, series: str) -> Terms:
    """Return the terms of a worker, which gathers the packets itself; LedgerError where they differ."""
    terms, session.ready = _terms(session, folder, ledger)
    return replace(terms, series=series)
