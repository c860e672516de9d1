"""The gate: once, in the controller, before the first attempt. Every refusal is one line and exit 4."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import platformdirs

from pytest_studyminimal import __version__
from pytest_studyminimal.approvals import (
    Cap,
    decide_cap,
    decide_upper,
    positive_amount,
    required_model,
)
from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.series import Series, digest_of, runner_digest
from pytest_studyminimal.evidence.sessions import alive, close_dead_runs
from pytest_studyminimal.evidence.uninterrupted import interrupts_wait
from pytest_studyminimal.judging.key import load_key
from pytest_studyminimal.plugin.options import on_command_line
from pytest_studyminimal.preflight import Ready, Roots, check, inside, place
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import LedgerError, UsageRefusedError
from pytest_studyminimal.protocol.schedule import plan
from pytest_studyminimal.reports.pilots import completed_pilot, pilot_lines
from pytest_studyminimal.run import COST_RULE, Run, Terms
from pytest_studyminimal.transports.agents import agent_options
from pytest_studyminimal.transports.claude_arguments import refuse_ambiguous
from pytest_studyminimal.transports.open import Opened, Site, open_transport
from pytest_studyminimal.workspace.folder import describe_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.protocol.records import Attempt
    from pytest_studyminimal.protocol.study import Connection, Tier
    from pytest_studyminimal.workspace.servers import ServerFacts


def pass_gate(session: StudySession, nodeids: list[str]) -> None:
    """Open the run of this session; StudyError with one line where it may not start."""
    folder = _one_study(session)
    attempts = session.attempts(folder)
    selected = _selection(nodeids, attempts)
    connection = effective_connection(session, folder)
    required_model(connection.model, os.environ)
    cap = decide_cap(
        folder.study, session.phase, session.config.getoption("study_budget_usd"), os.environ
    )
    roots = roots_of(session, folder)
    ledger_path = ledger_path_of(session, folder)
    for path in roots.paths.values():
        if inside(ledger_path, path):
            raise LedgerError(
                f"{ledger_path}: found a ledger inside {path}, required one outside every checkout"
            )
    # A dress rehearsal is free, in any phase: there is nothing to approve and nothing to measure first.
    dress = bool(session.config.getoption("study_rehearse"))
    approved = on_command_line(session.config, "--approve-budget") is not None
    if session.phase == "full" and not approved and not dress:
        raise UsageRefusedError(_approval_needed(folder, ledger_path, cap))
    _open(session, folder, connection, cap, roots, ledger_path, attempts, selected)


def _one_study(session: StudySession) -> StudyFolder:
    if len(session.folders) > 1:
        names = ", ".join(sorted(str(path) for path in session.folders))
        raise UsageRefusedError(
            f"--study: found several studies ({names}), required one per session"
        )
    return session.folder


def _selection(nodeids: list[str], attempts: tuple[Attempt, ...]) -> tuple[str, ...]:
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


def effective_connection(session: StudySession, folder: StudyFolder) -> Connection:
    """Return the connection of this session, with its provider replaced in a rehearsal."""
    connection = folder.study.connections[session.connection]
    if session.config.getoption("study_rehearse"):
        return connection.model_copy(
            update={"provider": "rehearsal", "base_url": None, "key": None}
        )
    return connection


def roots_of(session: StudySession, folder: StudyFolder) -> Roots:
    """Return where corpora and engines lie, from options, environment and the local file."""
    options = session.config.getoption("study_root")
    return Roots.gather(folder, options, os.environ, session.config.invocation_params.dir)


def ledger_path_of(session: StudySession, folder: StudyFolder) -> Path:
    """Return where this study's ledger lies."""
    option = session.config.getoption("study_ledger")
    if option is None:
        return platformdirs.user_state_path("studyminimal") / folder.study.id / "ledger.sqlite3"
    path = place(option, session.config.invocation_params.dir)
    return path / "ledger.sqlite3" if path.is_dir() else path


def terms_of(session: StudySession, folder: StudyFolder, series: str) -> Terms:
    """Return the terms of this session's attempts; UsageRefusedError for prices that are no amounts."""
    connection = effective_connection(session, folder)
    option = session.config.getoption
    attempt_usd = positive_amount("--study-attempt-budget-usd", option("study_attempt_budget_usd"))
    return Terms(
        study=folder.study,
        connection=connection,
        upper=_upper(session, folder),
        attempt_usd=attempt_usd or folder.study.attempt_usd(connection),
        series=series,
        rehearsal=connection.provider == "rehearsal",
    )


def _upper(session: StudySession, folder: StudyFolder) -> Tier:
    option = session.config.getoption
    options = {kind: option(f"study_{kind}_usd_per_million") for kind in ("input", "output")}
    return decide_upper(folder.study, options, os.environ)


def site_of(
    session: StudySession, folder: StudyFolder, agent: Mapping[str, str] | None = None
) -> Site:
    """Return what a transport needs of this machine; `agent` is what this run probed already."""
    return Site(
        environ=os.environ,
        cwd=session.config.invocation_params.dir,
        programs=agent_options(session.config.getoption("study_agent")),
        keys=keys_of(folder),
        agent=agent,
        named=frozenset(
            name for server in folder.study.servers.values() for name in server.pass_env
        ),
        literals=tuple(
            value for server in folder.study.servers.values() for value in server.env.values()
        ),
    )


def _agent_row(folder: StudyFolder, terms: Terms, ready: Ready, opened: Opened) -> dict[str, Any]:
    index = {name: watch.index_sha256() for name, watch in ready.watches.items() if watch.index}
    trees = {name: watch.tree for name, watch in ready.watches.items()}
    row: dict[str, Any] = {"index_sha256": index, "checkout_sha256": trees}
    if opened.agent is not None:
        row["agent"] = {
            "program": str(opened.agent.program),
            "version": opened.agent.version,
            "expected_version": terms.connection.version,
            "sha256": opened.agent.sha256,
            "login": opened.login,
            "denied_tools": [f"{server}:{exact}" for server, exact in ready.denied(folder)],
            "cost_rule": COST_RULE,
        }
    return row


def keys_of(folder: StudyFolder) -> frozenset[str]:
    """Return the names of the variables that hold a model's key; no child may get them."""
    keys = {one.key for one in folder.study.connections.values() if one.key}
    agents = any(one.is_agent for one in folder.study.connections.values())
    return frozenset(keys | ({"ANTHROPIC_API_KEY"} if agents else set()))


def series_of(
    session: StudySession,
    folder: StudyFolder,
    connection: Connection,
    ready: Ready,
    upper: Tier,
    opened: Opened,
) -> Series:
    """Return what binds this run's observations to others."""
    study = folder.study
    return Series(
        protocol=folder.digest,
        answer_key=folder.key_sha256,
        runner=runner_digest(),
        runner_version=__version__,
        transport=connection.transport,
        transport_version=connection.version,
        agent_sha256=opened.agent.sha256 if opened.agent else None,
        connection=session.connection,
        provider=connection.provider,
        model=connection.model,
        prices=digest_of([study.prices.model_dump(mode="json"), upper.model_dump(mode="json")]),
        servers=_servers(ready),
        rehearsal=connection.provider == "rehearsal",
    )


def _servers(ready: Ready) -> dict[str, str]:
    seen: dict[str, set[str]] = {}
    for by_server in ready.facts.values():
        for server, facts in by_server.items():
            seen.setdefault(server, set()).add(digest_of(_lasting(facts)))
    return {server: "+".join(sorted(digests)) for server, digests in seen.items()}


def _lasting(facts: ServerFacts) -> dict[str, Any]:
    # What lies in a corpus's own checkout differs from task to task and is bound by its pin.
    local = ("{export}", "{checkout}", "{config}")
    return {
        "identity": {
            label: sha256
            for label, sha256 in facts.identity.items()
            if not any(place in label for place in local)
        },
        "name": facts.name,
        "version": facts.version,
        "version_line": facts.version_line,
    }


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
    terms = terms_of(session, folder, series="")
    if connection.is_agent and money.rounded_down(terms.attempt_usd, 6) == 0:
        raise UsageRefusedError(
            f"attempt budget: found {money.text(terms.attempt_usd)} USD, required at least 0.000001,"
            " the least that an agent CLI can be told"
        )
    sources = {task: expected.sources for task, expected in load_key(folder).tasks.items()}
    opened = session.stack.enter_context(open_transport(connection, site_of(session, folder)))
    # All arms of the selected tasks: leaving one out must not make another series of the others.
    tasks = {attempt.task for attempt in attempts if attempt.id in selected}
    chosen = tuple(attempt for attempt in attempts if attempt.task in tasks)
    ready = check(folder, chosen, roots, sources=sources, keys=keys_of(folder))
    if connection.is_agent:
        refuse_ambiguous(folder.study, ready.denied(folder))
    series = series_of(session, folder, connection, ready, terms.upper, opened)
    terms = terms_of(session, folder, series.id)
    ledger = session.stack.enter_context(Ledger.open(ledger_path, folder.study.id))
    for dead in close_dead_runs(ledger):
        session.notes.append(
            f"run {dead} was found open and its session dead: closed, charged in full"
        )
    if session.phase == "full" and not session.config.getoption("study_rehearse"):
        _require_pilot(ledger, series)
    session.ready, session.roots = ready, roots
    session.stack.enter_context(alive(ledger, session.run_id))
    account = f"rehearsal:{session.run_id}" if terms.rehearsal else folder.study.id
    budget = Budget(ledger, account, session.run_id)
    body = _row(session, folder, terms, series, attempts, selected, ready)
    body |= _agent_row(folder, terms, ready, opened)
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


def _row(
    session: StudySession,
    folder: StudyFolder,
    terms: Terms,
    series: Series,
    attempts: tuple[Attempt, ...],
    selected: tuple[str, ...],
    ready: Ready,
) -> dict[str, Any]:
    connection = terms.connection
    return {
        "study": folder.study.id,
        "title": folder.study.title,
        "phase": session.phase,
        "series": {**series.model_dump(mode="json"), "id": series.id},
        "connection": session.connection,
        "transport": connection.transport,
        "transport_version": connection.version,
        "provider": connection.provider,
        "model": connection.model,
        "model_is_alias": connection.alias,
        "rehearsal": terms.rehearsal,
        "planned": [{"id": attempt.id, **attempt.model_dump()} for attempt in attempts],
        "selected": list(selected),
        "not_selected": [attempt.id for attempt in attempts if attempt.id not in selected],
        "full_attempts": len(plan(folder.study, "full")),
        "scenarios": list(folder.study.scenarios),
        "attempt_usd": money.text(terms.attempt_usd),
        "prices": folder.study.prices.model_dump(mode="json"),
        "upper": terms.upper.model_dump(mode="json"),
        "corpora": {
            name: {
                "commit": corpus.commit,
                "digest": corpus.digest,
                "files": len(corpus.files),
                "excluded": dict(corpus.excluded),
                "warnings": list(corpus.warnings),
            }
            for name, corpus in ready.corpora.items()
        },
        "servers": {
            corpus: {server: facts.model_dump(mode="json") for server, facts in by_server.items()}
            for corpus, by_server in ready.facts.items()
        },
        "study_folder": describe_folder(folder.path),
    }
