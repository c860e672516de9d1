"""Gates and margins that the study declared, held against the document of a run.

A gate over missing data fails: what nobody knows is no pass.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.text import dollars

if TYPE_CHECKING:
    from collections.abc import Iterator

_BETTER_HIGH = frozenset({"score"})


def statement(metric: str, margin: str, interval: list[float] | None, missing: int) -> str:
    """Return what an interval says of a declared margin, in words.

    One of: equivalent, not worse, worse, inconclusive, unknown. For a score lower is worse, for every
    other metric higher is.
    """
    if interval is None:
        return "unknown: no interval"
    least, most = interval if metric not in _BETTER_HIGH else (-interval[1], -interval[0])
    bound = float(Decimal(margin))
    gap = f" ({missing} pairs missing)" if missing else ""
    if least > bound:
        return f"worse by more than the margin{gap}"
    if most > bound:
        return f"inconclusive{gap}"
    return f"equivalent within the margin{gap}" if least >= -bound else f"not worse{gap}"


def declared(effects: list[dict[str, Any]], margins: dict[str, str]) -> None:
    """Add to every effect that has a margin what its interval says of it; others get none."""
    for effect in effects:
        for metric, margin in margins.items():
            found = effect["metrics"].get(metric)
            if found is not None:
                said = statement(metric, margin, found["interval"], found["missing"])
                found |= {"margin": margin, "margin_statement": said}


def gates_of(document: dict[str, Any], gates: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return every gate with whether it passed and why, in the order of the manifest's keys."""
    return list(_gates(document, gates)) if gates else []


def _gates(document: dict[str, Any], gates: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for metric in gates["within_margin"]:
        for effect in document["effects"]:
            yield _within_margin(metric, effect)
    if gates["min_correctness"] is not None:
        for arm in list(document["arms"])[1:]:
            yield _min_correctness(arm, document["correctness"]["arms"][arm], gates)
    if gates["max_usd"] is not None:
        yield _max_usd(document["money"], gates["max_usd"])
    if gates["max_missing"] is not None:
        yield _max_missing(document, gates["max_missing"])


def _gate(name: str, why: str, *, passed: bool) -> dict[str, Any]:
    return {"gate": name, "passed": passed, "why": why}


def _within_margin(metric: str, effect: dict[str, Any]) -> dict[str, Any]:
    found = effect["metrics"][metric]
    said = found.get("margin_statement", "unknown: no margin")
    passed = not found["missing"] and said.startswith(("equivalent", "not worse"))
    return _gate(f"within_margin {metric} of {effect['arms'][1]}", said, passed=passed)


def _min_correctness(arm: str, found: dict[str, Any], gates: dict[str, Any]) -> dict[str, Any]:
    least, mean = gates["min_correctness"], found["mean"]
    why = f"{mean if mean is not None else 'unknown'}, {found['missing']} missing, required {least}"
    whole = mean is not None and not found["missing"]
    return _gate(f"min_correctness of {arm}", why, passed=whole and Decimal(mean) >= Decimal(least))


def _max_usd(spent: dict[str, Any], most: str) -> dict[str, Any]:
    parts = [money.parse_exact(spent["charged_usd"])]
    if spent["adjudication_usd"] is not None:
        parts.append(money.parse_exact(spent["adjudication_usd"]))
    total = money.total(parts)
    why = f"{dollars(money.text(total))} charged, at most {dollars(most)}"
    return _gate("max_usd", why, passed=total <= money.parse_exact(most))


def _max_missing(document: dict[str, Any], most: int) -> dict[str, Any]:
    missing = document["correctness"]["all"]["missing"]
    return _gate("max_missing", f"{missing} missing, at most {most}", passed=missing <= most)


def gate_lines(document: dict[str, Any]) -> list[str]:
    """Return the gates as lines for people."""
    mark = " (rehearsal, not evidence)" if document["rehearsal"] else ""
    return [
        f"{'passed' if one['passed'] else 'FAILED'}  {one['gate']}: {one['why']}{mark}"
        for one in document["gates"]
    ]
