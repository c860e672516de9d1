"""The companion record of an answer: who judged it, what was said, and what binds that to the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_studyminimal.judging.verdicts import Adjudicator, Findings, is_disputed, rubric

if TYPE_CHECKING:
    from pytest_studyminimal.evidence.ledger import Ledger
    from pytest_studyminimal.evidence.records import Record
    from pytest_studyminimal.judging.packets import Packet

FAILED = "failed"
"""The outcome of an adjudication whose verdict had no readable form: it is missing, never guessed."""


def append_companion(
    ledger: Ledger,
    row: Record,
    packet: Packet,
    who: Adjudicator,
    findings: Findings | str,
    **facts: Any,
) -> None:
    """Append a verdict on a packet of the run that `row` opened, inside a transaction.

    In place of findings a text says why there are none. Reasons and false assertions are private.
    """
    malformed = isinstance(findings, str)
    ledger.append(
        "verdict",
        account=row.account,
        run=row.run,
        attempt=packet.attempt,
        body={
            "packet": packet.id,
            "protocol": row.body["series"]["protocol"],
            "answer_sha256": packet.answer_sha256,
            "key_sha256": packet.key_sha256,
            "adjudicator": who.model_dump(mode="json"),
            **(_unread(findings) if isinstance(findings, str) else _read(findings)),
            "citations": _checked(packet),
            "possible_unblinding": len(packet.unblinding),
            **facts,
        },
        private=None if malformed else {"verdict": findings.model_dump(mode="json")},  # type: ignore[union-attr]
    )


def _unread(problem: str) -> dict[str, Any]:
    return {"outcome": FAILED, "problem": problem, "disputed": False, "findings": []}


def _read(findings: Findings) -> dict[str, Any]:
    return {
        "stated": findings.outcome,
        "outcome": rubric(findings),
        "disputed": is_disputed(findings),
        "findings": [one.finding for one in findings.propositions],
    }


def _checked(packet: Packet) -> dict[str, int]:
    checks = [one.found for one in packet.citations]
    return {found: checks.count(found) for found in dict.fromkeys(checks)}
