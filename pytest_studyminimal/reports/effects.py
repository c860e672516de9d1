"""Effects of an arm: differences within pairs, averaged within tasks, tested and bounded over tasks.

Repetitions of a task are not independent of each other, so a task counts once, whatever its number of
repetitions. The test is a sign flip over tasks, exact up to 16 of them; the interval is a percentile
bootstrap over tasks with a seed of its own. With few tasks both are exploratory.
"""

from __future__ import annotations

import hashlib
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.errors import UsageRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_EXACT_TASKS = 16
DRAWS = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Effect:
    """What a metric's difference is over tasks; None where it cannot be said.

    `by_task` are mean differences, `estimate` is their mean, `interval` its bootstrap bounds, `p` the
    sign-flip probability, `standard_error` that over tasks, `least_p` the smallest that so many tasks
    could give, and `detectable` the size that a study of this many tasks and this spread would find four
    times out of five.
    """

    pairs: int
    by_task: dict[str, float]
    estimate: float | None
    interval: tuple[float, float] | None
    p: float | None
    least_p: float | None
    detectable: float | None
    standard_error: float | None = None


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
        standard_error=statistics.stdev(means) / count**0.5 if count >= 2 else None,
    )


def _seed(seed: str, what: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{what}:{seed}".encode()).digest()[:8], "big")


def _sign_flip(means: Sequence[float], seed: str) -> float:
    """Return how often signs at random give a mean at least as far from zero, both sides."""
    stats = _stats()
    # One more than there are makes SciPy enumerate them all.
    count = 2 ** len(means) + 1 if len(means) <= MOST_EXACT_TASKS else DRAWS
    found = stats.permutation_test(
        (list(means),),
        _mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=count,
        rng=_seed(seed, "sign flip"),
    )
    return float(found.pvalue)


def _bootstrap(means: Sequence[float], seed: str) -> tuple[float, float]:
    found = _stats().bootstrap(
        (list(means),),
        _mean,
        vectorized=True,
        method="percentile",
        confidence_level=LEVEL,
        n_resamples=DRAWS,
        rng=_seed(seed, "bootstrap"),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _mean(values: Any, axis: int) -> Any:
    return values.mean(axis=axis)


def _stats() -> Any:
    try:
        from scipy import stats  # noqa: PLC0415 - the extra, and half a second
    except ImportError:
        raise UsageRefusedError(
            'found no scipy, required for a report: pip install "pytest-studyminimal[report]"'
        ) from None
    return stats


def holm(probabilities: Mapping[str, float]) -> dict[str, float]:
    """Return probabilities corrected for their number, by Holm's method."""
    ranked = sorted(probabilities.items(), key=lambda pair: pair[1])
    corrected: dict[str, float] = {}
    highest = 0.0
    for place, (name, p) in enumerate(ranked):
        highest = max(highest, min(1.0, p * (len(ranked) - place)))
        corrected[name] = highest
    return {name: corrected[name] for name in probabilities}
