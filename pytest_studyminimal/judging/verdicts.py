"""Verdicts of an adjudicator, and the rubric that a program applies to them.

Correct 1: every proposition is supported and nothing material is false. Partial 0.5: some are, none
is contradicted. Incorrect 0: one is contradicted, or something material is false. Incomplete 0: no
usable answer. Missing: blocked attempts, and verdicts that disagree with their own findings.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pytest_studyminimal.protocol.frozen import Frozen

Outcome = Literal["correct", "partial", "incorrect", "incomplete"]
Words = Annotated[str, StringConstraints(max_length=5_000)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Finding(Frozen):
    """What an adjudicator says of one proposition, by its 1-based number."""

    proposition: Annotated[int, Field(ge=1)]
    finding: Literal["supported", "missing", "contradicted"]
    reason: Words
    citation: Words = ""


class Adjudicator(Frozen):
    """Who judged: an agent, a human or a program, with a name and the id of the session."""

    kind: Literal["agent", "human", "program"]
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    session: Annotated[str, StringConstraints(max_length=200)] = ""


class Verdict(Frozen):
    """One verdict on one packet, bound to the answer and the key by their hashes."""

    packet: Annotated[str, StringConstraints(pattern=r"^p[0-9]{2,6}$")]
    answer_sha256: Sha256
    key_sha256: Sha256
    adjudicator: Adjudicator
    outcome: Outcome
    propositions: Annotated[tuple[Finding, ...], Field(min_length=1, max_length=200)]
    material_false_assertions: Annotated[tuple[Words, ...], Field(max_length=200)] = ()


def problem_of(verdict: Verdict, propositions: int) -> str | None:
    """Return why a verdict cannot be taken at all, None where it can."""
    numbers = sorted(one.proposition for one in verdict.propositions)
    if numbers != list(range(1, propositions + 1)):
        return f"found propositions {numbers}, required each of 1 to {propositions} once"
    return None


def rubric(verdict: Verdict) -> Outcome:
    """Return the outcome that the findings require."""
    findings = [one.finding for one in verdict.propositions]
    if "contradicted" in findings or verdict.material_false_assertions:
        return "incorrect"
    supported = findings.count("supported")
    if supported == len(findings):
        return "correct"
    # Nothing false, and nothing of what was asked for: the answer says too little to be usable.
    return "partial" if supported else "incomplete"


def is_disputed(verdict: Verdict) -> bool:
    """Whether the stated outcome is not the one that its own findings require."""
    return verdict.outcome != rubric(verdict)
