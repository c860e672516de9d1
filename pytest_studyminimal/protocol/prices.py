"""What tokens cost: the list price by tier, and the upper price that reservations use."""

from __future__ import annotations

from decimal import Decimal

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.frozen import Frozen
from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.protocol.study import Prices, Tier

PROTOCOL_TOKENS = 8192
"""Input tokens reserved for what a request's bytes do not show (protocol: HTTP transport)."""


class Computed(Frozen):
    """A list price in dollars and how its tier was chosen."""

    usd: Decimal
    basis: str


def price(usage: Usage, tier: Tier) -> Decimal:
    """Return the exact price in dollars of `usage` at the rates of `tier`."""
    return money.total(
        money.per_million(rate, tokens)
        for rate, tokens in (
            (tier.input, usage.input_tokens),
            (tier.output, usage.output_tokens),
            (tier.cache_read, usage.cache_read_tokens),
            (tier.cache_write_5m, usage.cache_write_5m_tokens),
            (tier.cache_write_1h, usage.cache_write_1h_tokens),
        )
    )


def tier_for(prices: Prices, largest_prompt_tokens: int) -> tuple[Tier, str]:
    """Return the tier whose limit holds the largest single prompt, and its name.

    Exactly at a limit is still below it; above it every token of the attempt changes price.
    """
    below = 0
    for tier in prices.tiers:
        limit = tier.up_to_prompt_tokens
        if limit is not None and largest_prompt_tokens <= limit:
            return tier, "base" if not below else f"above-{_short(below)}"
        below = limit or below
    return prices.tiers[-1], f"above-{_short(below)}" if below else "base"


def _short(tokens: int) -> str:
    return f"{tokens // 1000}k" if tokens % 1000 == 0 else str(tokens)


def list_price(prices: Prices, usage: Usage, largest_prompt_tokens: int | None) -> Computed:
    """Return the list price of an attempt whose largest request had that many prompt tokens.

    Where single prompts are not known, the sum of all decides, which is an upper bound.
    """
    deciding = usage.prompt_tokens if largest_prompt_tokens is None else largest_prompt_tokens
    tier, name = tier_for(prices, deciding)
    basis = "aggregate prompt" if largest_prompt_tokens is None else "largest request"
    return Computed(usd=price(usage, tier), basis=f"{name}, {basis}")


AGREEMENT = 2
"""Reported and computed cost agree up to this factor, inclusive (protocol: cost check)."""


def agree(reported_usd: Decimal, computed_usd: Decimal) -> bool:
    """Whether two costs are within the factor of each other; two zeros agree, one zero does not."""
    low, high = sorted((reported_usd, computed_usd))
    return high <= money.multiply(low, AGREEMENT)


def upper_rates(
    prices: Prices, *, input_usd: Decimal | None = None, output_usd: Decimal | None = None
) -> Tier:
    """Return the highest rate of every kind, with the two that a user may raise.

    ValueError for a rate below the table's highest: a reservation would no longer be an upper bound.
    """
    return Tier(
        input=_raised(max(tier.input for tier in prices.tiers), input_usd),
        output=_raised(max(tier.output for tier in prices.tiers), output_usd),
        cache_read=max(tier.cache_read for tier in prices.tiers),
        cache_write_5m=max(tier.cache_write_5m for tier in prices.tiers),
        cache_write_1h=max(tier.cache_write_1h for tier in prices.tiers),
    )


def _raised(highest: Decimal, stated: Decimal | None) -> Decimal:
    if stated is not None and stated < highest:
        raise ValueError(f"at least {money.text(highest)}, the highest in the study's price table")
    return highest if stated is None else stated


def reservation(upper: Tier, *, request_bytes: int, output_tokens: int) -> Decimal:
    """Return what one call must reserve: (2 × bytes + 8,192) input tokens and the most output tokens.

    `request_bytes` counts the request as sent, in UTF-8 after JSON escaping.
    """
    worst = Usage(input_tokens=2 * request_bytes + PROTOCOL_TOKENS, output_tokens=output_tokens)
    return price(worst, upper)
