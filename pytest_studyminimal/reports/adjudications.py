"""What an adjudication session says at its end: verdicts by outcome, and what a program checked."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_studyminimal.reports.view import RunView

_ORDER = ("correct", "partial", "incorrect", "incomplete", "disputed", "failed")


def verdict_lines(run: RunView) -> list[str]:
    """Return the closing lines of an adjudication, which name no arm: a packet stays a packet."""
    return list(_lines(run))


def _lines(run: RunView) -> Iterator[str]:
    judged = run.row.body["judges"]["run"]
    bodies = [record.body for record in run.verdicts]
    outcomes = Counter("disputed" if body["disputed"] else body["outcome"] for body in bodies)
    told = ", ".join(f"{outcomes[name]} {name}" for name in _ORDER if outcomes[name])
    yield f"verdicts on run {judged}: {told or 'none'}"
    if missing := outcomes["disputed"] + outcomes["failed"]:
        yield f"{missing} count as missing: a verdict is never guessed"
    citations = sum((Counter(body["citations"]) for body in bodies), Counter[str]())
    if citations:
        checked = ", ".join(f"{count} {found}" for found, count in sorted(citations.items()))
        yield f"citations checked by program: {checked}"
    if telling := [body for body in bodies if body["possible_unblinding"]]:
        yield f"possible unblinding: {len(telling)} of {len(bodies)} answers name a word of an arm"
    if any(body.get("same_model") for body in bodies):
        yield "the adjudicator is the model that answered, in a fresh context"
