"""What adjudication made of each attempt: an outcome, or why there is none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_studyminimal.evidence.records import Record
    from pytest_studyminimal.reports.view import Line, RunView

SCORES = {
    "correct": Decimal(1),
    "partial": Decimal("0.5"),
    "incorrect": Decimal(0),
    "incomplete": Decimal(0),
}


@dataclass(frozen=True)
class Outcome:
    """One attempt's outcome; `score` is None where it is missing, and `why` says why."""

    outcome: str
    why: str | None
    adjudicators: tuple[str, ...] = ()
    agreed: bool | None = None

    @property
    def score(self) -> Decimal | None:
        """1, 0.5 or 0; None where it is missing."""
        return SCORES.get(self.outcome)


def outcomes(run: RunView) -> dict[str, Outcome]:
    """Return the outcome of every planned attempt.

    Of several verdicts of one adjudicator the last counts; where adjudicators differ the outcome is
    missing. A verdict on another answer or key than the run's is stale and counts for nothing.
    """
    key = run.row.body["series"].get("answer_key")
    by_attempt: dict[str, list[Record]] = {}
    for record in run.verdicts:
        by_attempt.setdefault(record.attempt, []).append(record)
    return {
        line.attempt.id: _outcome(line, by_attempt.get(line.attempt.id, ()), key)
        for line in run.lines
    }


def _outcome(line: Line, records: Sequence[Record], key: str | None) -> Outcome:
    seen = line.observation
    if seen is None or line.status != "completed":
        return Outcome("missing", line.status)
    if not seen.answer_complete:
        return Outcome("incomplete", "no usable answer", ("program",))
    fresh = [
        record
        for record in records
        if record.body["key_sha256"] == key and record.body["answer_sha256"] == seen.answer_sha256
    ]
    if not fresh:
        return Outcome("missing", "stale verdict" if records else "not adjudicated")
    last = {_name(record): record.body for record in fresh}
    names, bodies = tuple(last), list(last.values())
    failed = any(body["outcome"] == "failed" for body in bodies)
    if failed or any(body["disputed"] for body in bodies):
        return Outcome("missing", "failed adjudication" if failed else "disputed", names)
    found = {body["outcome"] for body in bodies}
    agreed = len(found) == 1 if len(bodies) > 1 else None
    if len(found) > 1:
        return Outcome("missing", "adjudicators differ", names, agreed)
    return Outcome(found.pop(), None, names, agreed)


def _name(record: Record) -> str:
    who = record.body["adjudicator"]
    return f"{who['kind']}:{who['name']}"


def correctness(every: Mapping[str, Outcome], lines: Sequence[Line]) -> dict[str, Any]:
    """Return the distribution of outcomes over some attempts, and what the missing ones could make of it."""
    mine = [every[line.attempt.id] for line in lines]
    scores = [one.score for one in mine if one.score is not None]
    missing = [one for one in mine if one.score is None]
    counts = {name: sum(one.outcome == name for one in mine) for name in SCORES}
    why = [one.why or "" for one in missing]
    correct = counts["correct"]
    charged = money.total(line.observation.charged_usd for line in lines if line.observation)
    total = money.total(scores)
    return {
        **counts,
        "missing": len(missing),
        "missing_because": {reason: why.count(reason) for reason in dict.fromkeys(why)},
        "n": len(scores),
        "mean": money.text(money.scaled(total, 1, len(scores))) if scores else None,
        # If every missing attempt were wrong, or right.
        "range": (
            [
                money.text(money.scaled(total, 1, len(mine))),
                money.text(money.scaled(money.add(total, Decimal(len(missing))), 1, len(mine))),
            ]
            if mine
            else None
        ),
        "usd_per_correct": money.text(money.scaled(charged, 1, correct)) if correct else None,
    }


def declaration(run: RunView) -> str:
    """Return the required sentence on who judged, and whether anybody looked."""
    kinds = sorted({record.body["adjudicator"]["kind"] for record in run.verdicts})
    if not kinds:
        return (
            "correctness: no answer of this run was adjudicated yet; no human review was performed"
        )
    if kinds == ["agent"]:
        return "correctness is agent-adjudicated; no human review was performed"
    review = "" if "human" in kinds else "; no human review was performed"
    return f"correctness is adjudicated by {' and '.join(kinds)}{review}"


def adjudication(run: RunView, every: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return who judged, what a program checked of the answers, and what could have unblinded."""
    last = {record.attempt: record.body for record in run.verdicts}
    citations: Counter[str] = Counter()
    for body in last.values():
        citations.update(body.get("citations", {}))
    telling = [body for body in last.values() if body.get("possible_unblinding")]
    why = Counter(one.why for one in every.values() if one.score is None)
    return {
        "adjudicators": [
            {"kind": kind, "name": name, "verdicts": count}
            for (kind, name), count in Counter(
                (record.body["adjudicator"]["kind"], record.body["adjudicator"]["name"])
                for record in run.verdicts
            ).items()
        ],
        "judged": len(last),
        "disputed": why["disputed"],
        "stale": why["stale verdict"],
        "failed": why["failed adjudication"],
        "citations": dict(sorted(citations.items())),
        "possible_unblinding": {
            "answers": len(telling),
            "words": sum(body["possible_unblinding"] for body in telling),
            "by_arm": {
                arm: sum(
                    bool(last[line.attempt.id].get("possible_unblinding"))
                    for line in run.lines
                    if line.attempt.scenario == arm and line.attempt.id in last
                )
                for arm in run.row.body["scenarios"]
            },
        },
    }


def agreement(every: Mapping[str, Outcome]) -> dict[str, int]:
    """Return how many attempts several adjudicators judged, and on how many they agreed."""
    known = [one.agreed for one in every.values() if one.agreed is not None]
    return {"judged_by_several": len(known), "agreed": sum(known)}
