"""The rehearsal's adjudicator: a proposition is supported where an answer holds most of its keywords."""

from __future__ import annotations

import json
from typing import Any

from pytest_studyminimal.rehearsal.finding import keywords_of, shared

_ASKED = ("packet", "answer", "expected_propositions", "sources")


def verdict_on(question: str) -> str | None:
    """Return a verdict as JSON, None where the question holds no packet to judge."""
    packet = _packet_in(question)
    if packet is None:
        return None
    findings = [_finding(one, packet) for one in packet["expected_propositions"]]
    supported = sum(one["finding"] == "supported" for one in findings)
    outcome = "partial" if supported else "incomplete"
    if supported == len(findings):
        outcome = "correct"
    verdict = {
        "packet": packet["packet"],
        "outcome": outcome,
        "propositions": findings,
        "material_false_assertions": [],
    }
    return json.dumps(verdict, ensure_ascii=False)


def _packet_in(question: str) -> dict[str, Any] | None:
    # Instructions stand before it, and show a form of their own in braces.
    _, separator, text = question.rpartition("\n\n{")
    try:
        packet = json.loads("{" + text) if separator else None
    except (ValueError, RecursionError):
        return None
    return packet if isinstance(packet, dict) and all(name in packet for name in _ASKED) else None


def _finding(proposition: dict[str, Any], packet: dict[str, Any]) -> dict[str, Any]:
    keywords = keywords_of(proposition["text"])
    found = shared(packet["answer"], keywords)
    return {
        "proposition": proposition["proposition"],
        "finding": "supported" if found * 2 >= len(keywords) else "missing",
        "reason": f"{found} of its {len(keywords)} keywords stand in the answer",
        "citation": _place_of(keywords, packet["sources"]),
    }


def _place_of(keywords: list[str], sources: dict[str, str]) -> str:
    places = [
        (-shared(line, keywords), path, number)
        for path, text in sources.items()
        for number, line in enumerate(text.split("\n"), start=1)
    ]
    if not places:
        return ""
    _, path, number = min(places)
    return f"{path}:{number}"
