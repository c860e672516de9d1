"""The arms compared: pairs of the same task and repetition, missing sides listed and never guessed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Observation

if TYPE_CHECKING:
    from pytest_studyminimal.reports.view import Line

Metric = Callable[[Observation], Decimal | None]


def _tokens(name: str) -> Metric:
    def metric(observation: Observation) -> Decimal | None:
        if observation.usage is None or not observation.usage_complete:
            return None
        return Decimal(getattr(observation.usage, name))

    return metric


def _number(value: float | None) -> Decimal | None:
    return None if value is None else Decimal(str(value))


METRICS: dict[str, Metric] = {
    "tokens in": _tokens("prompt_tokens"),
    "tokens out": _tokens("output_tokens"),
    "tools": lambda observation: _number(observation.tool_calls),
    "seconds": lambda observation: _number(observation.wall_s),
    "charged USD": lambda observation: observation.charged_usd,
}


@dataclass(frozen=True)
class Differences:
    """`second − first` over the pairs in which both sides completed, and how many pairs did not.

    `medians` holds the median difference by metric; a metric without a usable pair is left out.
    """

    first: str
    second: str
    pairs: int
    missing: int
    medians: dict[str, Decimal]


def differences(lines: tuple[Line, ...], scenarios: tuple[str, ...]) -> tuple[Differences, ...]:
    """Compare every later scenario with the first one, pair by pair."""
    by_pair: dict[str, dict[str, Line]] = {}
    for line in lines:
        by_pair.setdefault(line.attempt.pair, {})[line.attempt.scenario] = line
    first, *others = scenarios
    return tuple(_compare(by_pair, first, other) for other in others)


def _compare(by_pair: dict[str, dict[str, Line]], first: str, second: str) -> Differences:
    complete = [
        (left, right)
        for sides in by_pair.values()
        if (left := _completed(sides.get(first))) and (right := _completed(sides.get(second)))
    ]
    medians = {}
    for name, metric in METRICS.items():
        values = [
            money.subtract(there, here)
            for left, right in complete
            if (here := metric(left)) is not None and (there := metric(right)) is not None
        ]
        if values:
            medians[name] = median(values)
    return Differences(first, second, len(complete), len(by_pair) - len(complete), medians)


def _completed(line: Line | None) -> Observation | None:
    if line is None or line.status != "completed":
        return None
    return line.observation


def median(values: list[Decimal]) -> Decimal:
    """Return the exact median; the mean of the middle two where their number is even."""
    low, high = statistics.median_low(values), statistics.median_high(values)
    return money.multiply(money.add(low, high), Decimal("0.5"))
