"""What a run is opened with: its terms, its place, its series and its record."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import platformdirs

from pytest_studyminimal import __version__
from pytest_studyminimal.approvals import decide_upper, positive_amount
from pytest_studyminimal.evidence.series import Series, digest_of, runner_digest
from pytest_studyminimal.preflight import Ready, Roots, place
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.schedule import plan
from pytest_studyminimal.run import COST_RULE, Terms
from pytest_studyminimal.transports.agents import agent_options
from pytest_studyminimal.transports.open import Opened, Site
from pytest_studyminimal.workspace.folder import describe_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal
    from pathlib import Path

    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.protocol.manifest import StudyFolder
    from pytest_studyminimal.protocol.records import Attempt
    from pytest_studyminimal.protocol.study import Connection, Study, Tier
    from pytest_studyminimal.workspace.servers import ServerFacts


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


def terms_of(
    session: StudySession, study: Study, connection: Connection, series: str, usd: Decimal
) -> Terms:
    """Return the terms of this session's attempts, of which one may cost `usd` where no option says so.

    UsageRefusedError for prices that are no amounts.
    """
    option = session.config.getoption
    attempt_usd = positive_amount("--study-attempt-budget-usd", option("study_attempt_budget_usd"))
    return Terms(
        study=study,
        connection=connection,
        upper=_upper(session, study),
        attempt_usd=attempt_usd or usd,
        series=series,
        rehearsal=connection.provider == "rehearsal",
    )


def _upper(session: StudySession, study: Study) -> Tier:
    option = session.config.getoption
    options = {kind: option(f"study_{kind}_usd_per_million") for kind in ("input", "output")}
    return decide_upper(study, options, os.environ)


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


def agent_row(folder: StudyFolder, terms: Terms, ready: Ready, opened: Opened) -> dict[str, Any]:
    """Return what a run's record says of checkouts and, where there is one, of the agent's program."""
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
    session: StudySession, folder: StudyFolder, terms: Terms, ready: Ready, opened: Opened
) -> Series:
    """Return what binds this run's observations to others."""
    connection, study = terms.connection, terms.study
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
        prices=digest_of(
            [study.prices.model_dump(mode="json"), terms.upper.model_dump(mode="json")]
        ),
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


def row_of(
    session: StudySession,
    folder: StudyFolder,
    terms: Terms,
    series: Series,
    attempts: tuple[Attempt, ...],
    selected: tuple[str, ...],
    ready: Ready,
) -> dict[str, Any]:
    """Return the public body of the record that opens a run."""
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
        "arms": {
            name: {"tools": list(scenario.tools), "servers": list(scenario.servers)}
            for name, scenario in folder.study.scenarios.items()
        },
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
        # What was declared before, for whoever reads the report.
        "margins": {name: money.text(usd) for name, usd in folder.study.margins.items()},
        "gates": folder.study.gates and folder.study.gates.model_dump(mode="json"),
    }
