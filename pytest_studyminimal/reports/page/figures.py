"""Figures as text on the page: exact where they are sums, six digits at least where they are not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

UNKNOWN = "–"
NAMES = {
    "score": "score",
    "input_tokens": "input tokens",
    "cache_read_tokens": "cache read tokens",
    "cache_write_tokens": "cache write tokens",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "turns": "turns",
    "tool_calls": "tool calls",
    "wall_s": "seconds",
    "charged_usd": "charged USD",
    "reported_cost_usd": "reported USD",
    "computed_cost_usd": "computed USD",
}


def name_of(metric: str) -> str:
    """Return what people call a metric."""
    return NAMES.get(metric, metric.replace("_", " "))


def exact(value: Any) -> str:
    """Return a number or a decimal text with every digit, thousands apart; a dash where unknown."""
    if value is None:
        return UNKNOWN
    return value if value == "unlimited" else f"{Decimal(str(value)):,f}"


def rounded(value: Any) -> str:
    """Return a mean or an estimate with at most eight digits, never with an exponent."""
    if value is None:
        return UNKNOWN
    return f"{Decimal(f'{Decimal(str(value)):.8g}').normalize():,f}".replace("-", "−")


def brief(value: Any, metric: str) -> str:
    """Return an estimate for a caption: four digits, six of money; the tables have more."""
    digits = 6 if metric.endswith("_usd") else 4
    return UNKNOWN if value is None else rounded(f"{value:.{digits}g}")


def dollars(value: Any) -> str:
    """Return an amount of money with every digit; unknown is a dash, never $0."""
    if value in {None, "unlimited"}:
        return UNKNOWN if value is None else str(value)
    text = exact(value)
    return f"−${text[1:]}" if text.startswith("-") else f"${text}"


def number(value: Any) -> float | None:
    """Return a plain value as a number to draw; None where it is unknown."""
    return None if value is None else float(value)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, `1 pair` or `1,200 pairs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
