"""The gate: once, in the controller, before the first attempt. Every refusal is one line and exit 4."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_studyminimal.approvals import (
    Cap,
    decide_cap,
    required_model,
)
from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.sessions import alive, close_dead_runs
from pytest_studyminimal.evidence.uninterrupted import interrupts_wait
from pytest_studyminimal.judging.key import load_key
from pytest_studyminimal.plugin.opening import (
    agent_row,
    effective_connection,
    keys_of,
    ledger_path_of,
    roots_of,
    row_of,
    series_of,
    site_of,
    terms_of,
)
from pytest_studyminimal.plugin.options import on_command_line
from pytest_studyminimal.preflight import Roots, check, inside
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import LedgerError, UsageRefusedError
from pytest_studyminimal.reports.pilots import completed_pilot, pilot_lines
from pytest_studyminimal.run import Run, Terms
from pytest_studyminimal.transports.claude_arguments import refuse_ambiguous
from pytest_studyminimal.transports.open import open_transport

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_studyminimal.evidence.series import Series
    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.protocol.records import Attempt
    from pytest_studyminimal.protocol.study import Connection


def pass_gate(session: StudySession, nodeids: list[str]) -> None:
    """Open the run of this session; StudyError with one line where it may not start."""
    folder = one_study(session)
    attempts = session.attempts(folder)
    selected = selection(nodeids, attempts)
    connection = effective_connection(session, folder)
    required_model(connection.model, os.environ)
    cap = decide_cap(
        folder.study, session.phase, session.config.getoption("study_budget_usd"), os.environ
    )
    roots = roots_of(session, folder)
    ledger_path = ledger_path_of(session, folder)
    refuse_ledger_inside(ledger_path, roots)
    # A dress rehearsal is free, in any phase: there is nothing to approve and nothing to measure first.
    dress = bool(session.config.getoption("study_rehearse"))
    approved = on_command_line(session.config, "--approve-budget") is not None
    if session.phase == "full" and not approved and not dress:
        raise UsageRefusedError(_approval_needed(folder, ledger_path, cap))
    _open(session, folder, connection, cap, roots, ledger_path, attempts, selected)


def refuse_ledger_inside(ledger_path: Path, roots: Roots) -> None:
    """Raise LedgerError for a ledger in a checkout, where an agent could read it."""
    for path in roots.paths.values():
        if inside(ledger_path, path):
            raise LedgerError(
                f"{ledger_path}: found a ledger inside {path}, required one outside every checkout"
            )


def one_study(session: StudySession) -> StudyFolder:
    """Return the one study of a session; UsageRefusedError where there are several."""
    if len(session.folders) > 1:
        names = ", ".join(sorted(str(path) for path in session.folders))
        raise UsageRefusedError(
            f"--study: found several studies ({names}), required one per session"
        )
    return session.folder


def selection(nodeids: list[str], attempts: tuple[Attempt, ...]) -> tuple[str, ...]:
    """Return the ids of the attempts that test items stand for, in the frozen order.

    UsageRefusedError for an item of no attempt, an attempt of two items, and another order.
    """
    places = {attempt.id: attempt.place for attempt in attempts}
    selected = [nodeid.rpartition("[")[2].removesuffix("]") for nodeid in nodeids]
    for name, nodeid in zip(selected, nodeids, strict=True):
        if name not in places:
            raise UsageRefusedError(
                f"{nodeid}: found an item that is no attempt of the plan, required only those"
            )
        if selected.count(name) > 1:
            raise UsageRefusedError(
                f"{name}: found in several test items, required one: an attempt runs at most once"
            )
    if [places[name] for name in selected] != sorted(places[name] for name in selected):
        raise UsageRefusedError(
            "found items out of the frozen order, required no plugin that reorders them"
        )
    return tuple(selected)


def _open(
    session: StudySession,
    folder: StudyFolder,
    connection: Connection,
    cap: Cap,
    roots: Roots,
    ledger_path: Path,
    attempts: tuple[Attempt, ...],
    selected: tuple[str, ...],
) -> None:
    terms = terms_of(session, folder.study, connection, "", folder.study.attempt_usd(connection))
    refuse_untellable(terms)
    sources = {task: expected.sources for task, expected in load_key(folder).tasks.items()}
    opened = session.stack.enter_context(open_transport(connection, site_of(session, folder)))
    # All arms of the selected tasks: leaving one out must not make another series of the others.
    tasks = {attempt.task for attempt in attempts if attempt.id in selected}
    chosen = tuple(attempt for attempt in attempts if attempt.task in tasks)
    ready = check(folder, chosen, roots, sources=sources, keys=keys_of(folder))
    if connection.is_agent:
        refuse_ambiguous(folder.study, ready.denied(folder))
    series = series_of(session, folder, terms, ready, opened)
    terms = replace(terms, series=series.id)
    ledger = session.stack.enter_context(Ledger.open(ledger_path, folder.study.id))
    close_dead(session, ledger)
    if session.phase == "full" and not session.config.getoption("study_rehearse"):
        _require_pilot(ledger, series)
    session.ready, session.roots = ready, roots
    session.stack.enter_context(alive(ledger, session.run_id))
    account = f"rehearsal:{session.run_id}" if terms.rehearsal else folder.study.id
    budget = Budget(ledger, account, session.run_id)
    body = row_of(session, folder, terms, series, attempts, selected, ready)
    body |= agent_row(folder, terms, ready, opened)
    run = Run(
        id=session.run_id, terms=terms, ledger=ledger, budget=budget, transport=opened.transport
    )
    with interrupts_wait():
        with ledger.transaction():
            # Questions are private; with them a run can be judged again from the ledger alone.
            private = {
                "manifest": folder.study.model_dump(mode="json", by_alias=True, exclude_unset=True)
            }
            ledger.append("run", account=account, run=session.run_id, body=body, private=private)
            budget.approve(cap.usd, phase=session.phase, series=series.id, source=cap.source)
        # From here on the end of the session closes it, whatever comes.
        session.run = run


def close_dead(session: StudySession, ledger: Ledger) -> None:
    """Close every run whose session is dead, and note it for the terminal."""
    for dead in close_dead_runs(ledger):
        session.notes.append(
            f"run {dead} was found open and its session dead: closed, charged in full"
        )


def refuse_untellable(terms: Terms) -> None:
    """Raise UsageRefusedError for an attempt's budget that an agent CLI cannot be told."""
    if terms.connection.is_agent and money.rounded_down(terms.attempt_usd, 6) == 0:
        raise UsageRefusedError(
            f"attempt budget: found {money.text(terms.attempt_usd)} USD, required at least 0.000001,"
            " the least that an agent CLI can be told"
        )


def _require_pilot(ledger: Ledger, series: Series) -> None:
    pilot, differs = completed_pilot(ledger, series)
    if pilot is not None:
        return
    found = "no completed pilot"
    if differs:
        found = f"a completed pilot of another series (differs in {', '.join(differs)})"
    raise UsageRefusedError(
        f"--study full: found {found}, required a completed one of this series: pytest --study pilot"
    )


def _approval_needed(folder: StudyFolder, ledger_path: Path, cap: Cap) -> str:
    measured = "no pilot was measured yet: pytest --study pilot"
    if ledger_path.exists():
        with Ledger.open(ledger_path, folder.study.id) as ledger:
            measured = "; ".join(pilot_lines(ledger)) or measured
    return (
        f"--study full: found no approval, required --approve-budget for a cap of {money.text(cap.usd)} USD"
        f" ({cap.source}); {measured}"
    )
