"""Effects of an arm: differences within pairs, averaged within tasks, tested and bounded over tasks.

Repetitions of a task are not independent of each other, so a task counts once, whatever its number of
repetitions. The test is a sign flip over tasks, exact up to 16 of them; the interval is a percentile
bootstrap over tasks with a seed of its own. With few tasks both are exploratory.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_EXACT_TASKS = 16
DRAWS = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Effect:
    """What a metric's difference is over tasks; None where it cannot be said.

    `by_task` are mean differences, `estimate` is their mean, `interval` its bootstrap bounds, `p` the
    sign-flip probability, `least_p` the smallest that so many tasks could give, and `detectable` the
    size that a study of this many tasks and this spread would find four times out of five.
    """

    pairs: int
    by_task: dict[str, float]
    estimate: float | None
    interval: tuple[float, float] | None
    p: float | None
    least_p: float | None
    detectable: float | None


def effect(differences: Mapping[str, Sequence[float]], seed: str) -> Effect:
    """Return the effect of pair differences by task; tasks without a pair are left out."""
    by_task = {task: statistics.fmean(values) for task, values in differences.items() if values}
    means = list(by_task.values())
    count = len(means)
    return Effect(
        pairs=sum(len(values) for values in differences.values()),
        by_task=by_task,
        estimate=statistics.fmean(means) if means else None,
        interval=_bootstrap(means, seed) if count >= 2 else None,
        p=_sign_flip(means, seed) if count >= 2 else None,
        least_p=2.0 / 2**count if count >= 2 else None,
        # 1.96 + 0.84: five percent two-sided, and a power of eighty percent, in standard errors.
        detectable=2.8 * statistics.stdev(means) / count**0.5 if count >= 2 else None,
    )


def _generator(seed: str, what: str) -> random.Random:
    digest = hashlib.sha256(f"{what}:{seed}".encode()).digest()
    return random.Random(int.from_bytes(digest, "big"))  # noqa: S311 - repeatable, not secret


def _sign_flip(means: Sequence[float], seed: str) -> float:
    """Return how often signs at random give a mean at least as far from zero, both sides."""
    observed = abs(sum(means))
    # The same sum in another order may differ in its last digit.
    enough = observed - 1e-9 * max(1.0, observed)
    if len(means) <= MOST_EXACT_TASKS:
        sums = [
            abs(sum(sign * mean for sign, mean in zip(signs, means, strict=True)))
            for signs in itertools.product((1, -1), repeat=len(means))
        ]
        return sum(one >= enough for one in sums) / len(sums)
    chance = _generator(seed, "sign flip")
    hits = sum(
        abs(sum(mean if chance.random() < 0.5 else -mean for mean in means)) >= enough
        for _ in range(DRAWS)
    )
    return (hits + 1) / (DRAWS + 1)


def _bootstrap(means: Sequence[float], seed: str) -> tuple[float, float]:
    chance = _generator(seed, "bootstrap")
    drawn = sorted(statistics.fmean(chance.choices(means, k=len(means))) for _ in range(DRAWS))
    tail = int(DRAWS * (1 - LEVEL) / 2)
    return drawn[tail], drawn[-tail - 1]


def holm(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Return probabilities corrected for their number, by Holm's method."""
    ranked = sorted(probabilities.items(), key=lambda pair: pair[1])
    corrected: dict[str, float] = {}
    highest = 0.0
    for place, (name, p) in enumerate(ranked):
        highest = max(highest, min(1.0, p * (len(ranked) - place)))
        corrected[name] = highest
    return {name: corrected[name] for name in probabilities}
