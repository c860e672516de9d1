"""Verdicts of an adjudicator, and the rubric that a program applies to them.

Correct 1: every proposition is supported and nothing material is false. Partial 0.5: some are, none
is contradicted. Incorrect 0: one is contradicted, or something material is false. Incomplete 0: no
usable answer. Missing: blocked attempts, and verdicts that disagree with their own findings.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal, TypeVar

from pydantic import Field, StringConstraints, ValidationError

from pytest_studyminimal.protocol.findings import describe
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


class Findings(Frozen):
    """What an adjudicator found about one packet, as a model returns it."""

    packet: Annotated[str, StringConstraints(pattern=r"^p[0-9]{2,6}$")]
    outcome: Outcome
    propositions: Annotated[tuple[Finding, ...], Field(min_length=1, max_length=200)]
    material_false_assertions: Annotated[tuple[Words, ...], Field(max_length=200)] = ()


class Verdict(Findings):
    """Findings bound to the answer and the key by their hashes, and to who said them."""

    answer_sha256: Sha256
    key_sha256: Sha256
    adjudicator: Adjudicator


Model = TypeVar("Model", bound=Findings)


def parse(text: str, model: type[Model]) -> Model:
    """Return the findings or the verdict that a text of JSON holds.

    ValueError with one public line, which quotes nothing of the text, where it holds none: another
    form, a key twice, an unknown key.
    """
    try:
        json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise ValueError("found no JSON object, required one with each key once") from None
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(describe(error, model, show_found=False)) from None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError
    return table


def bare(text: str) -> str:
    """Return a text without the one code fence that may be around all of it."""
    fenced = re.fullmatch(r"\s*```(?:json)?[ \t]*\n(.*?)\n?```\s*", text, re.DOTALL)
    return fenced[1] if fenced else text


def problem_of(verdict: Findings, propositions: int) -> str | None:
    """Return why a verdict cannot be taken at all, None where it can."""
    numbers = sorted(one.proposition for one in verdict.propositions)
    if numbers != list(range(1, propositions + 1)):
        return f"found propositions {numbers}, required each of 1 to {propositions} once"
    return None


def rubric(verdict: Findings) -> Outcome:
    """Return the outcome that the findings require."""
    findings = [one.finding for one in verdict.propositions]
    if "contradicted" in findings or verdict.material_false_assertions:
        return "incorrect"
    supported = findings.count("supported")
    if supported == len(findings):
        return "correct"
    # Nothing false, and nothing of what was asked for: the answer says too little to be usable.
    return "partial" if supported else "incomplete"


def is_disputed(verdict: Findings) -> bool:
    """Whether the stated outcome is not the one that its own findings require."""
    return verdict.outcome != rubric(verdict)
