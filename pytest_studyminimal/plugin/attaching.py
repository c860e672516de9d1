"""How an xdist worker joins the run that its controller opened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.sessions import alive
from pytest_studyminimal.plugin.opening import (
    effective_connection,
    ledger_path_of,
    roots_of,
    site_of,
    terms_of,
)
from pytest_studyminimal.preflight import Ready, expecting, read_corpora, watches_of
from pytest_studyminimal.protocol.errors import LedgerError
from pytest_studyminimal.run import Run, Terms
from pytest_studyminimal.transports.open import open_transport
from pytest_studyminimal.workspace.servers import ServerFacts

if TYPE_CHECKING:
    from pytest_studyminimal.plugin.session import StudySession
    from pytest_studyminimal.protocol.manifest import StudyFolder


def attach(session: StudySession) -> Run:
    """Return the run of this worker's controller; LedgerError where plans or series differ."""
    folder = session.folder
    ledger = session.stack.enter_context(
        Ledger.open(ledger_path_of(session, folder), folder.study.id)
    )
    session.stack.enter_context(alive(ledger, session.run_id))
    rows = ledger.records(run=session.run_id, kind="run")
    if not rows:
        raise LedgerError(
            f"{ledger.path}: found no run {session.run_id}, required the controller's"
        )
    body = rows[0].body
    if body["series"]["protocol"] != folder.digest:
        raise LedgerError(
            f"{folder.file}: found another protocol than the controller's, required the same"
        )
    session.roots = roots_of(session, folder)
    terms = _joined(session, folder, ledger, body)
    opened = session.stack.enter_context(
        open_transport(terms.connection, site_of(session, folder, body.get("agent")))
    )
    return Run(
        id=session.run_id,
        terms=terms,
        ledger=ledger,
        budget=Budget(ledger, rows[0].account, session.run_id),
        transport=opened.transport,
    )


def _joined(
    session: StudySession, folder: StudyFolder, ledger: Ledger, body: dict[str, Any]
) -> Terms:
    if session.phase == "adjudicate":
        from pytest_studyminimal.plugin.adjudicating import join  # noqa: PLC0415

        if body["judges"]["run"] != session.docket_of(folder).run.row.run:
            raise LedgerError("found another run to judge than the controller's, required the same")
        return join(session, folder, ledger, body["series"]["id"])
    attempts = tuple(one for one in session.attempts(folder) if one.id in body["selected"])
    session.ready = Ready(
        corpora=read_corpora(folder, attempts, session.roots),
        facts={
            corpus: {
                server: ServerFacts.model_validate_json(json.dumps(facts))
                for server, facts in servers.items()
            }
            for corpus, servers in body["servers"].items()
        },
        watches=expecting(
            watches_of(folder, attempts, session.roots), body.get("checkout_sha256", {})
        ),
    )
    connection = effective_connection(session, folder)
    usd = folder.study.attempt_usd(connection)
    return terms_of(session, folder.study, connection, body["series"]["id"], usd)
