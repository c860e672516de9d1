"""Exact money: decimal text in, decimal text out, and no caller's context can round it.

Operators on `Decimal` obey whatever context a stranger's conftest has set (1.000962 became 1.00),
so all arithmetic goes through one private context that raises where a result would be inexact.
"""

from __future__ import annotations

import decimal
import re
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_EXACT = decimal.Context(
    prec=200,
    Emin=-999_999,
    Emax=999_999,
    traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow, decimal.DivisionByZero],
)
_PROJECTED = decimal.Context(
    prec=200,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=-999_999,
    Emax=999_999,
    traps=[decimal.InvalidOperation, decimal.Overflow, decimal.DivisionByZero],
)
_DOWN = decimal.Context(prec=200, rounding=decimal.ROUND_DOWN, traps=[decimal.InvalidOperation])
AMOUNT_PATTERN = r"[0-9]{1,12}(\.[0-9]{1,12})?"
_WRITTEN = re.compile(r"-?[0-9]{1,120}(\.[0-9]{1,120})?([eE][-+]?[0-9]{1,3})?", re.ASCII)
_AMOUNT = re.compile(AMOUNT_PATTERN, re.ASCII)

ZERO = Decimal(0)
UNLIMITED_WORD = "unlimited"
UNLIMITED = Decimal("Infinity")
"""A cap that was explicitly lifted. Never an amount: only comparisons are made with it."""
AMOUNT_RULE = (
    'a decimal number in quotes such as "0.10": digits, at most 12 before and after the point'
)


def parse(text: object) -> Decimal:
    """Return the amount that `text` writes; ValueError for all but plain ASCII decimals."""
    if not isinstance(text, str) or not _AMOUNT.fullmatch(text):
        raise ValueError(AMOUNT_RULE)
    return Decimal(text)


def parse_exact(text: str) -> Decimal:
    """Return an amount, or a lifted cap, that `text` below wrote, with as many digits as it has."""
    if text == UNLIMITED_WORD:
        return UNLIMITED
    if not _WRITTEN.fullmatch(text):
        raise ValueError("a finite decimal number")
    return _EXACT.create_decimal(text)


def text(amount: Decimal) -> str:
    """Return `amount` without exponent and without trailing zeros; `parse` reads it back exactly."""
    if amount == UNLIMITED:
        return UNLIMITED_WORD
    sign, digits, exponent = amount.as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits))
    if exponent >= 0:
        whole, fraction = figures + "0" * exponent, ""
    else:
        figures = figures.rjust(1 - exponent, "0")
        whole, fraction = figures[:exponent], figures[exponent:].rstrip("0")
    whole = whole.lstrip("0") or "0"
    plain = f"{whole}.{fraction}" if fraction else whole
    return f"-{plain}" if sign and plain != "0" else plain


def add(left: Decimal, right: Decimal) -> Decimal:
    """Return the exact sum."""
    return _EXACT.add(left, right)


def subtract(left: Decimal, right: Decimal) -> Decimal:
    """Return the exact difference."""
    return _EXACT.subtract(left, right)


def multiply(amount: Decimal, times: Decimal | int) -> Decimal:
    """Return the exact product."""
    return _EXACT.multiply(amount, Decimal(times))


def per_million(rate_usd: Decimal, tokens: int) -> Decimal:
    """Return the price in dollars of `tokens` at `rate_usd` per million tokens."""
    return _EXACT.scaleb(_EXACT.multiply(rate_usd, Decimal(tokens)), -6)


def scaled(amount: Decimal, numerator: int, denominator: int) -> Decimal:
    """Return `amount` × numerator / denominator, rounded half-even at 9 decimals: projections only."""
    product = _EXACT.multiply(amount, Decimal(numerator))
    return _PROJECTED.quantize(_PROJECTED.divide(product, Decimal(denominator)), Decimal("1e-9"))


def rounded_down(amount: Decimal, places: int) -> Decimal:
    """Return `amount` cut to that many decimals, never above it."""
    return _DOWN.quantize(amount, Decimal(1).scaleb(-places, _DOWN))


def total(amounts: Iterable[Decimal]) -> Decimal:
    """Return the exact sum of all amounts, zero for none."""
    result = ZERO
    for amount in amounts:
        result = _EXACT.add(result, amount)
    return result
