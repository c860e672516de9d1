"""What `studyminimal ledger` says: accounts and runs of a ledger, whether it is whole, its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import platformdirs

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.sessions import is_alive
from pytest_studyminimal.evidence.verification import exported, read_export, verify
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import LedgerError, UsageRefusedError
from pytest_studyminimal.protocol.manifest import is_study_folder, load
from pytest_studyminimal.protocol.text import dollars, one_line
from pytest_studyminimal.reports.summary import columns
from pytest_studyminimal.reports.view import RunView, view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_studyminimal.evidence.verification import Verified

_SQLITE = b"SQLite format 3\0"
Printed = tuple[dict[str, Any], list[str]]


def find_ledger(place: Path | None) -> Path:
    """Return the ledger that `place` means: its file, its folder, or its study's folder.

    Without a place the only ledger of the state directory is meant. StudyError where there is none.
    """
    state = platformdirs.user_state_path("studyminimal")
    if place is not None:
        if is_study_folder(place):
            return state / load(place).study.id / "ledger.sqlite3"
        return place / "ledger.sqlite3" if place.is_dir() else place
    found = sorted(state.glob("*/ledger.sqlite3"))
    if len(found) != 1:
        names = ", ".join(map(str, found)) or "none"
        raise UsageRefusedError(
            f"found {len(found)} ledgers under {state}, required a study or a ledger: {names}"
        )
    return found[0]


def shown(place: Path | None) -> Printed:
    """Return accounts and runs of a ledger, as JSON and as lines; it is only read."""
    path = find_ledger(place)
    with Ledger.read(path) as ledger:
        rows = ledger.records(kind="run")
        runs = [_run(ledger, view(ledger, row.run)) for row in rows]
        accounts = [_account(ledger, name) for name in dict.fromkeys(row.account for row in rows)]
        count = len(ledger.records())
    document = {"ledger": str(path), "records": count, "accounts": accounts, "runs": runs}
    return document, list(_shown_lines(document))


def _account(ledger: Ledger, name: str) -> dict[str, Any]:
    balance = ledger.balance(name)
    approvals = ledger.records(kind="approval")
    mine = [one for one in approvals if one.account == name]
    return {
        "account": name,
        "spent_usd": money.text(balance.spent_usd),
        "reserved_usd": money.text(balance.reserved_usd),
        "committed_usd": money.text(balance.committed_usd),
        "cap_usd": mine[-1].body["cap_usd"] if mine else None,
        "approvals": [{"at": one.at, "run": one.run, **one.body} for one in mine],
    }


def _run(ledger: Ledger, seen: RunView) -> dict[str, Any]:
    body = seen.row.body
    statuses = [line.status for line in seen.selected]
    folder = body.get("study_folder", {})
    if seen.close is not None:
        state = f"closed: {seen.close.body['reason']}"
    elif is_alive(ledger.directory, seen.row.run):
        state = "running"
    else:
        state = "its session is dead: the next run closes it, charged in full"
    return {
        "run": seen.row.run,
        "at": seen.row.at,
        "phase": body["phase"],
        "account": seen.row.account,
        "series": body["series"]["id"],
        "rehearsal": body["rehearsal"],
        "state": state,
        "stopped_by": seen.stop and {"attempt": seen.stop.attempt, "why": seen.stop.body["why"]},
        "attempts": len(statuses),
        "statuses": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        "open": [line.attempt.id for line in seen.lines if line.status == "open"],
        "ended_by_crash": [
            line.attempt.id
            for line in seen.lines
            if line.observation and line.observation.reason == "the session ended"
        ],
        "charged_usd": money.text(seen.charged_usd),
        "commit": folder.get("commit"),
        "dirty": folder.get("dirty"),
    }


def _shown_lines(document: dict[str, Any]) -> Iterator[str]:
    yield f"{document['ledger']}: {document['records']:,} records"
    for account in document["accounts"]:
        yield (
            f"account {account['account']}: {dollars(account['spent_usd'])} spent,"
            f" {dollars(account['reserved_usd'])} reserved of a cap of"
            f" {dollars(account['cap_usd'] or '0')}"
        )
    rows = [("run", "phase", "attempts", "completed", "charged", "started", "state")]
    rows += [
        (
            run["run"],
            run["phase"] + (" (rehearsal)" if run["rehearsal"] else ""),
            str(run["attempts"]),
            str(run["statuses"].get("completed", 0)),
            dollars(run["charged_usd"]),
            run["at"][:19] + "Z",
            one_line(run["state"], 80),
        )
        for run in document["runs"]
    ]
    yield ""
    yield from columns(rows)
    for run in document["runs"]:
        yield from _remarks(run)


def _remarks(run: dict[str, Any]) -> Iterator[str]:
    if run["stopped_by"]:
        stop = run["stopped_by"]
        yield one_line(f"run {run['run']} stopped at {stop['attempt'] or 'once'}: {stop['why']}")
    for attempt in run["open"]:
        yield f"run {run['run']}: {attempt} is open, its reservation stays charged"
    for attempt in run["ended_by_crash"]:
        yield f"run {run['run']}: {attempt} was open when its session ended, charged in full"
    if run["dirty"]:
        yield f"run {run['run']}: the study folder had changes beside commit {run['commit']}"


def verified(place: Path | None, head: str | None) -> tuple[Verified, Printed]:
    """Return whether a ledger or an export is whole, and the lines that say so.

    `head` is the hash of a record noted earlier, which must still be there.
    """
    path = find_ledger(place)
    if _is_database(path):
        with Ledger.read(path, damaged=True) as ledger:
            records = ledger.records()
            unruly = ledger.missing_rules()
    else:
        records, unruly = list(read_export(path)), ()
    result = verify(records)
    problems = [*result.problems, *unruly]
    if head is not None and all(record.sha256 != head for record in records):
        problems.append(f"found no record with the noted head {one_line(head, 80)}")
    result = type(result)(result.records, result.head, tuple(problems), result.private_absent)
    without = (
        f", {result.private_absent} without their private part" if result.private_absent else ""
    )
    verdict = "whole" if not problems else f"{len(problems)} problems"
    lines = [
        *(f"problem  {problem}" for problem in problems),
        f"{path}: {result.records:,} records{without}, {verdict}; head {result.head}",
    ]
    document = {
        "ledger": str(path),
        "records": result.records,
        "head": result.head,
        "private_absent": result.private_absent,
        "whole": not problems,
        "problems": problems,
    }
    return result, (document, lines)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise LedgerError(f"{path}: found {why}, required a ledger or an export") from None


def export_lines(place: Path | None, *, private: bool) -> Iterator[str]:
    """Yield one line of JSON per record; answers and questions only where `private`."""
    with Ledger.read(find_ledger(place)) as ledger:
        for record in ledger.records():
            yield exported(record, private=private)
