"""The rule book: transcript → status and reason, one table for every transport.

The rules are read from the top; the first that finds something decides the status, and every lower
finding is recorded as a problem all the same. A transport translates, it never judges.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Judgement, Status, ToolCall, Transcript
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal


@dataclass(frozen=True)
class Facts:
    """What was planned and what the house itself measured, beside the transcript.

    `overshoot_usd` is what calls cost beyond their own reservations, in dollars.
    """

    model: str
    alias: bool
    deadline_s: float
    offered_tools: tuple[str, ...]
    export_changes: tuple[str, ...] = ()
    overshoot_usd: Decimal = money.ZERO


def judge(transcript: Transcript, facts: Facts) -> Judgement:
    """Return the one status of an attempt, the public reason, and everything that was found."""
    findings = [
        (status, one_line(finding))
        for status, rule in _RULES
        if (finding := rule(transcript, facts)) is not None
    ]
    problems = tuple(f"{status}: {finding}" for status, finding in findings)
    if not findings:
        return Judgement(status="completed", reason=_unusable(transcript))
    status, reason = findings[0]
    return Judgement(status=status, reason=reason, problems=problems)


def _unusable(transcript: Transcript) -> str | None:
    # A valid observation whose outcome is decided without a judge: incomplete, 0.
    if transcript.answer_complete:
        return None
    said = transcript.problem or f"no usable answer (stop reason {transcript.stop_reason})"
    return one_line(said)


def _deadline(transcript: Transcript, facts: Facts) -> str | None:
    if transcript.ending != "deadline":
        return None
    return f"the deadline of {facts.deadline_s:g} s passed"


def _refused(transcript: Transcript, _: Facts) -> str | None:
    return _said(transcript) if transcript.ending == "budget" else None


def _interrupted(transcript: Transcript, _: Facts) -> str | None:
    return "the session was interrupted" if transcript.ending == "interrupted" else None


def _export_changed(_: Transcript, facts: Facts) -> str | None:
    if not facts.export_changes:
        return None
    return f"the export was changed: {', '.join(facts.export_changes)}"


def _tools_as_planned(transcript: Transcript, facts: Facts) -> str | None:
    offered, planned = Counter(transcript.offered_tools), Counter(facts.offered_tools)
    missing, extra = sorted(planned - offered), sorted(offered - planned)
    if not missing and not extra:
        return None
    return (
        f"offered tools differ from the plan: missing {missing or 'none'}, extra {extra or 'none'}"
    )


def _every_server_call_failed(transcript: Transcript, _: Facts) -> str | None:
    by_server: dict[str, list[ToolCall]] = {}
    for call in transcript.tool_calls:
        if call.server and not call.refused:
            by_server.setdefault(call.server, []).append(call)
    dead = [
        f"every call to server {server} failed ({len(calls)})"
        for server, calls in sorted(by_server.items())
        if all(call.is_error for call in calls)
    ]
    return "; ".join(dead) or None


def _model(transcript: Transcript, facts: Facts) -> str | None:
    for seen in transcript.models:
        dated = facts.alias and re.fullmatch(re.escape(facts.model) + r"-[0-9]{8}", seen)
        if seen != facts.model and not dated:
            return f"served by model {one_line(seen, 80)}, required {facts.model}"
    if len(transcript.models) > 1:
        return f"served by several models: {one_line(', '.join(transcript.models))}"
    return None


def _budget_exceeded(transcript: Transcript, facts: Facts) -> str | None:
    if transcript.ending == "attempt-budget":
        return _said(transcript)
    if facts.overshoot_usd > 0:
        return f"charged {money.text(facts.overshoot_usd)} USD more than was reserved"
    return None


def _provider_failed(transcript: Transcript, _: Facts) -> str | None:
    return _said(transcript) if transcript.ending in {"transport", "protocol"} else None


def _said(transcript: Transcript) -> str:
    # No ending but "finished" may pass for completed because a transport gave no words for it.
    return transcript.problem or f"ended by {transcript.ending}"


_RULES: tuple[tuple[Status, Callable[[Transcript, Facts], str | None]], ...] = (
    ("timed-out", _deadline),
    ("blocked", _refused),
    ("failed", _interrupted),
    ("invalid-setup", _export_changed),
    ("invalid-setup", _tools_as_planned),
    ("invalid-setup", _every_server_call_failed),
    ("invalid-cost", _model),
    ("budget-exceeded", _budget_exceeded),
    ("failed", _provider_failed),
)
