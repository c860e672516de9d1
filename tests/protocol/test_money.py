"""Money stays exact whatever a stranger has done to the decimal module."""

from __future__ import annotations

import decimal
import os
import subprocess
import sys
import threading
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Attempt, Observation
from pytest_studyminimal.protocol.text import dollars

EVERY_TRAP = [
    *(decimal.Clamped, decimal.DivisionByZero, decimal.FloatOperation, decimal.Inexact),
    *(decimal.InvalidOperation, decimal.Overflow, decimal.Rounded, decimal.Subnormal),
    decimal.Underflow,
]
HOSTILE = [
    decimal.Context(prec=3),
    decimal.Context(prec=1, rounding=decimal.ROUND_UP, traps=EVERY_TRAP),
    decimal.Context(prec=3, rounding=decimal.ROUND_FLOOR, Emin=-2, Emax=2, clamp=1),
    decimal.Context(prec=3, rounding=decimal.ROUND_05UP, traps=[], capitals=0),
]
AMOUNTS = st.from_regex(r"\A(0|[1-9][0-9]{0,11})(\.[0-9]{1,12})?\Z").filter(str.isascii)


@pytest.fixture(params=HOSTILE, ids=["low", "traps", "narrow", "silent"])
def hostile(request):
    with decimal.localcontext(request.param):
        yield


def everything():
    """Every operation with figures that three digits cannot hold."""
    long, small = money.parse("123456789012.123456789012"), money.parse("0.000000000001")
    return (
        money.add(long, small),
        money.subtract(long, small),
        money.multiply(long, 3),
        money.multiply(long, small),
        money.per_million(money.parse("0.125"), 1_234_567),
        money.scaled(money.parse("0.000119"), 6, 2),
        money.scaled(money.parse("1"), 1, 3),
        money.total([small] * 3),
        money.parse_exact("0.00012345678901234567890123456789"),
        money.text(money.subtract(small, long)),
    )


EXPECTED = (
    Decimal("123456789012.123456789013"),
    Decimal("123456789012.123456789011"),
    Decimal("370370367036.370370367036"),
    Decimal("0.123456789012123456789012"),
    Decimal("0.154320875"),
    Decimal("0.000357000"),
    Decimal("0.333333333"),
    Decimal("0.000000000003"),
    Decimal("0.00012345678901234567890123456789"),
    "-123456789012.123456789011",
)


def test_arithmetic_is_exact():
    assert everything() == EXPECTED


def test_no_context_of_the_caller_rounds_or_raises(hostile):
    found = everything()

    assert [str(one) for one in found] == [str(one) for one in EXPECTED]


def test_no_context_of_another_thread_rounds_or_raises():
    found = {}

    def work(context):
        decimal.setcontext(context)
        for _ in range(200):
            found.setdefault(id(context), set()).add(everything())

    threads = [threading.Thread(target=work, args=(context,)) for context in HOSTILE]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(found.values()) == [{EXPECTED}] * len(HOSTILE)


def test_not_even_a_changed_default_context_reaches_the_sums():
    code = (
        "import decimal\n"
        "decimal.DefaultContext.prec = 3\n"
        "decimal.DefaultContext.Emax = 3\n"
        "decimal.DefaultContext.rounding = decimal.ROUND_UP\n"
        "for signal in decimal.DefaultContext.traps: decimal.DefaultContext.traps[signal] = True\n"
        "decimal.setcontext(decimal.DefaultContext)\n"
        "from pytest_studyminimal.protocol import money\n"
        "third = money.scaled(money.parse('1'), 1, 3)\n"
        "long = money.add(money.parse('123456789012'), money.parse('0.000000000001'))\n"
        "print(money.text(third), money.text(long))\n"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ
    )

    assert (ran.stdout, ran.stderr) == ("0.333333333 123456789012.000000000001\n", "")


def test_what_cannot_be_exact_raises_and_is_never_rounded():
    with pytest.raises(decimal.Inexact):
        money.multiply(Decimal("1." + "1" * 150), Decimal("1." + "1" * 150))


@given(AMOUNTS)
def test_text_and_parse_are_inverse(text):
    amount = money.parse(text)

    assert money.parse(money.text(amount)) == amount
    assert money.text(money.parse(money.text(amount))) == money.text(amount)
    assert "E" not in money.text(amount).upper()


@given(AMOUNTS, AMOUNTS)
def test_sums_and_differences_undo_each_other(left, right):
    one, other = money.parse(left), money.parse(right)
    total = money.add(one, other)

    assert money.subtract(total, other) == one
    assert total == money.total([other, one])
    assert money.parse_exact(money.text(total)) == total


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=15
    )
)
def test_text_keeps_every_digit_of_any_amount(amount):
    assert money.parse_exact(money.text(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0", "0"),
        ("-0.00", "0"),
        ("0.10", "0.1"),
        ("100", "100"),
        ("1E+3", "1000"),
        ("4E-7", "0.0000004"),
        ("-0.0000004", "-0.0000004"),
        ("12.500", "12.5"),
    ],
)
def test_text_has_no_exponent_and_no_trailing_zeros(amount, text):
    assert money.text(Decimal(amount)) == text


@pytest.mark.parametrize(
    "bad",
    [
        *("nan", "inf", "-1", "", " ", "1,5", "1_000", "0x10", "1e400", "1e-2", "$1", "1\n", "+1"),
        *("\u0661", "1.", ".1", "9" * 13, "0." + "9" * 13, 1, 1.0, True, None, Decimal(1), b"1"),
    ],
)
def test_parse_takes_plain_ascii_decimals_only(bad):
    with pytest.raises(ValueError, match="a decimal number in quotes"):
        money.parse(bad)


@pytest.mark.parametrize(
    ("cap", "charged", "following", "starts"),
    [
        ("0.80", ["0.10", "0.70"], "0.10", False),
        ("0.30", ["0.10", "0.10"], "0.10", True),
        ("1", ["0.1"] * 9, "0.1", True),
        ("1", ["0.000001"] * 3, "0.999997", True),
        ("1", ["0.000001"] * 3, "0.9999971", False),
    ],
)
def test_the_decision_at_a_cap_does_not_drift(hostile, cap, charged, following, starts):
    total = money.total(map(money.parse, charged))

    assert (money.add(total, money.parse(following)) <= money.parse(cap)) is starts


def observed(amount):
    attempt = Attempt(place=0, task="one", scenario="plain", repetition=1, connection="api")
    return Observation(
        attempt=attempt,
        status="completed",
        transport="messages-api",
        model="m",
        charged_usd=Decimal(amount),
        computed_cost_usd=Decimal(amount),
        rehearsal=False,
    )


@pytest.mark.parametrize(
    "amount", ["4E-7", "0.00088", "0", "12.50", "1E+2", "123456789012.000000000001"]
)
def test_an_observation_writes_amounts_as_plain_text_and_reads_them_back(hostile, amount):
    one = observed(amount)
    written = one.model_dump(mode="json", exclude_none=True)

    assert written["charged_usd"] == written["computed_cost_usd"] == money.text(Decimal(amount))
    assert Observation.model_validate_json(one.model_dump_json()).charged_usd == Decimal(amount)


@pytest.mark.parametrize("amount", [0.1, "NaN", "Infinity"])
def test_an_observation_refuses_amounts_that_are_none(amount):
    with pytest.raises(ValueError, match="charged_usd"):
        Observation.model_validate({**observed("0").model_dump(), "charged_usd": amount})


def test_dollars_keep_every_digit_and_the_sign_goes_first():
    assert dollars("0.00088") == "$0.00088"
    assert dollars("-0.5") == "-$0.5"
