"""What tokens cost: every cache tier, the boundary of a tier, and what a call must reserve."""

from __future__ import annotations

import ast
import decimal
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pytest_studyminimal.protocol
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.prices import (
    list_price,
    price,
    reservation,
    tier_for,
    upper_rates,
)
from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.protocol.study import Prices, Tier

RATES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


def tier(limit, *rates):
    named = dict(zip(RATES, map(Decimal, rates), strict=True))
    return Tier(up_to_prompt_tokens=limit, **named)


BASE = tier(100_000, "0.10", "0.50", "0.01", "0.125", "0.20")
ABOVE = tier(None, "0.50", "2.50", "0.05", "0.625", "1.00")
PRICES = Prices(source="a list", date="2026-10-10", tiers=(BASE, ABOVE))


@pytest.mark.parametrize(
    ("written", "usd"),
    [
        ({"cache_write_5m_tokens": 60_000, "cache_write_1h_tokens": 40_000}, "0.0155"),
        ({"cache_write_1h_tokens": 100_000}, "0.020"),
        ({"cache_write_5m_tokens": 10_000, "cache_write_1h_tokens": 90_000}, "0.01925"),
        ({"cache_write_5m_tokens": 100_000}, "0.0125"),
    ],
)
def test_cache_writes_of_five_minutes_and_one_hour_are_priced_apart(written, usd):
    usage = Usage(**written)

    assert usage.cache_write_tokens == usage.prompt_tokens == 100_000
    assert price(usage, BASE) == Decimal(usd)
    assert list_price(PRICES, usage, usage.prompt_tokens).usd == Decimal(usd)


def test_every_kind_of_token_has_its_own_rate():
    kinds = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
    for kind in kinds:
        usage = Usage(**{f"{kind}_tokens": 1_000_000})
        assert price(usage, BASE) == getattr(BASE, kind)
    everything = Usage(**{f"{kind}_tokens": 1_000_000 for kind in kinds})
    assert price(everything, BASE) == money.total(getattr(BASE, kind) for kind in kinds)


@pytest.mark.parametrize(
    ("prompt", "usd", "basis"),
    [
        (100_000, "0.01005", "base, largest request"),
        (100_001, "0.0502505", "above-100k, largest request"),
    ],
)
def test_exactly_at_the_limit_is_below_it_and_one_more_token_changes_every_price(
    prompt, usd, basis
):
    computed = list_price(PRICES, Usage(input_tokens=prompt, output_tokens=100), prompt)

    assert computed.usd == Decimal(usd)
    assert computed.basis == basis


def test_the_largest_single_request_decides_the_tier_and_not_their_sum():
    usage = Usage(input_tokens=180_000, output_tokens=100)

    assert list_price(PRICES, usage, 90_000).usd == Decimal("0.01805")
    assert list_price(PRICES, usage, 100_001).usd == Decimal("0.09025")


def test_middle_tiers_are_named_by_the_limit_below_them():
    three = Prices(
        source="a list",
        date="2026-10-10",
        tiers=(BASE, BASE.model_copy(update={"up_to_prompt_tokens": 100_500}), ABOVE),
    )

    assert [tier_for(three, prompt)[1] for prompt in (0, 100_000, 100_001, 100_500, 100_501)] == [
        *("base", "base", "above-100k", "above-100k", "above-100500")
    ]


def test_one_tier_is_the_base_for_every_prompt():
    one = Prices(source="a list", date="2026-10-10", tiers=(ABOVE,))

    assert tier_for(one, 10**9) == (ABOVE, "base")


@pytest.mark.parametrize(
    ("request_bytes", "usd"),
    [
        (0, "0.006656"),
        (1, "0.006657"),
        (10_000, "0.016656"),
        (65_536, "0.072192"),
        (1_000_000, "1.006656"),
    ],
)
def test_a_call_reserves_two_tokens_per_byte_and_8192_more_at_the_upper_rates(request_bytes, usd):
    upper = upper_rates(PRICES)

    assert reservation(upper, request_bytes=request_bytes, output_tokens=1024) == Decimal(usd)


def test_a_reservation_is_the_same_under_a_context_of_three_digits():
    with decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP)):
        assert money.text(
            reservation(upper_rates(PRICES), request_bytes=1, output_tokens=1024)
        ) == ("0.006657")


def test_upper_rates_are_the_highest_of_each_kind_in_whatever_tier():
    falling = Prices(
        source="a list",
        date="2026-10-10",
        tiers=(tier(10, "9", "1", "0", "8", "0"), tier(None, "1", "7", "0.5", "2", "3")),
    )
    upper = upper_rates(falling)

    assert [getattr(upper, rate) for rate in RATES] == [
        Decimal(x) for x in ("9", "7", "0.5", "8", "3")
    ]


def test_a_user_may_raise_the_upper_input_and_output_rates_and_not_lower_them():
    upper = upper_rates(PRICES, input_usd=Decimal("0.6"), output_usd=Decimal(9))
    with pytest.raises(ValueError, match=r"at least 0\.5, the highest"):
        upper_rates(PRICES, input_usd=Decimal("0.49"))
    with pytest.raises(ValueError, match=r"at least 2\.5, the highest"):
        upper_rates(PRICES, output_usd=Decimal("0.000000000001"))

    assert (upper.input, upper.output, upper.cache_read) == (
        Decimal("0.6"),
        Decimal(9),
        Decimal("0.05"),
    )


TOKENS = st.integers(0, 10_000_000)
USAGES = st.builds(Usage, **{f"{rate}_tokens": TOKENS for rate in RATES})


@given(USAGES, TOKENS)
def test_no_list_price_is_above_the_price_at_the_upper_rates(usage, largest):
    assert list_price(PRICES, usage, largest).usd <= price(usage, upper_rates(PRICES))


@given(USAGES, USAGES)
def test_prices_of_two_calls_add_up_exactly(one, other):
    assert price(one.plus(other), BASE) == money.add(price(one, BASE), price(other, BASE))


def test_the_protocol_room_calculates_no_money_in_floats():
    room = Path(pytest_studyminimal.protocol.__file__).parent
    for file in ("money.py", "prices.py"):
        for node in ast.walk(ast.parse((room / file).read_text())):
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), file
            assert not (isinstance(node, ast.Name) and node.id in {"float", "round"}), file
            assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), file
