"""How much may be spent, and who said so."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from pytest_studyminimal.approvals import decide_cap, positive_amount, required_model
from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.verification import verify
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.manifest import load
from pytest_studyminimal.protocol.text import dollars

BAD = [
    *("nan", "NaN", "inf", "Infinity", "-1", "-0.01", "", " ", "null", "None", "true", "1,5"),
    *("1_000", "0x10", "1e400", "9" * 400, "1 USD", "$1", "\u0661", "1\n", "+-1", "1e-2"),
    *("unlimited", "Unlimited", "false", "[]", "\x1b[31m\n1", "\ud800"),
]


@pytest.fixture
def study():
    return load(Path(__file__).parents[1] / "studies" / "quickstart").study


def plan(study, **budget):
    amounts = {name: Decimal(usd) for name, usd in budget.items()}
    return study.model_copy(update={"budget": study.budget.model_copy(update=amounts)})


@pytest.mark.parametrize(
    ("manifest", "variable", "option", "usd", "source"),
    [
        ("1", None, None, "1", "budget.pilot_usd"),
        ("1", "0.5", None, "0.5", "STUDY_BUDGET_USD"),
        ("1", "5", None, "1", "budget.pilot_usd"),
        ("1", None, "0.25", "0.25", "--study-budget-usd"),
        ("1", "0.5", "0.25", "0.25", "--study-budget-usd"),
        ("1", "0.1", "0.25", "0.1", "STUDY_BUDGET_USD"),
        ("1", "5", "25", "1", "budget.pilot_usd"),
    ],
)
def test_a_pilot_has_the_smallest_cap_that_was_said(study, manifest, variable, option, usd, source):
    environ = {} if variable is None else {"STUDY_BUDGET_USD": variable}
    cap = decide_cap(plan(study, pilot_usd=manifest), "pilot", option, environ)

    assert (cap.usd, cap.source) == (Decimal(usd), source)


@pytest.mark.parametrize(
    ("manifest", "variable", "option", "usd", "source"),
    [
        ("2", None, None, "2", "budget.full_usd"),
        ("2", "5", None, "5", "STUDY_BUDGET_USD"),
        ("2", "5", "3", "3", "--study-budget-usd"),
        ("2", "1", "25.50", "25.50", "--study-budget-usd"),
    ],
)
def test_a_full_run_takes_the_option_then_the_variable_then_the_manifest(
    study, manifest, variable, option, usd, source
):
    environ = {} if variable is None else {"STUDY_BUDGET_USD": variable}
    cap = decide_cap(plan(study, full_usd=manifest), "full", option, environ)

    assert (cap.usd, cap.source) == (Decimal(usd), source)


@pytest.mark.parametrize("phase", ["pilot", "full"])
@pytest.mark.parametrize("bad", [*BAD, "0", "0.00"])
def test_a_value_that_is_no_amount_above_zero_is_refused_with_its_source(study, phase, bad):
    for source, option, environ in (
        ("--study-budget-usd", bad, {}),
        ("STUDY_BUDGET_USD", None, {"STUDY_BUDGET_USD": bad}),
        ("STUDY_BUDGET_USD", "1", {"STUDY_BUDGET_USD": bad}),
    ):
        with pytest.raises(UsageRefusedError) as refused:
            decide_cap(study, phase, option, environ)

        line = str(refused.value)
        assert line.startswith(f"{source}: found '")
        assert ", required " in line
        assert all(char.isprintable() for char in line)
        assert len(line) < 250


def test_zero_is_said_to_mean_no_paid_work():
    with pytest.raises(UsageRefusedError, match="0 means no paid work"):
        positive_amount("--x", "0")


def test_a_command_line_needs_no_quotes_in_its_amounts():
    with pytest.raises(UsageRefusedError) as refused:
        positive_amount("--x", "1 USD")

    assert str(refused.value) == (
        "--x: found '1 USD', required a decimal number such as 0.10: digits, at most 12 before and after"
        " the point"
    )


@pytest.mark.parametrize("text", ["1", "0.10", "25.50", "0.000001", "0.000000000001"])
def test_a_plain_decimal_is_taken_exactly(text):
    assert positive_amount("--x", text) == Decimal(text)


def test_nothing_said_is_no_amount():
    assert positive_amount("--x", None) is None


def test_a_model_of_the_environment_must_be_the_model_of_the_study():
    required_model("claude-haiku-5-5", {})
    required_model("claude-haiku-5-5", {"STUDY_MODEL": "claude-haiku-5-5"})
    for other in ("claude-haiku-5-5-20261010", "", "claude-haiku-5-5 ", "\x1b[31m\n"):
        with pytest.raises(UsageRefusedError) as refused:
            required_model("claude-haiku-5-5", {"STUDY_MODEL": other})
        assert str(refused.value).endswith("required 'claude-haiku-5-5'")
        assert all(char.isprintable() for char in str(refused.value))


def test_the_quickstart_can_only_be_rehearsed(study):
    text = (Path(__file__).parents[1] / "studies" / "quickstart" / "study.toml").read_text()

    assert {one["provider"] for one in tomllib.loads(text)["connections"].values()} == {"rehearsal"}
    assert study.connections[study.default_connection].key is None


@pytest.mark.parametrize("source", ["option", "variable"])
def test_the_word_unlimited_lifts_the_cap_of_a_full_run_where_the_manifest_allows_it(study, source):
    option = "unlimited" if source == "option" else None
    environ = {} if option else {"STUDY_BUDGET_USD": "unlimited"}
    allowed = study.model_copy(
        update={"budget": study.budget.model_copy(update={"unlimited": True})}
    )

    with pytest.raises(UsageRefusedError, match="does not allow that word"):
        decide_cap(study, "full", option, environ)
    assert money.text(decide_cap(allowed, "full", option, environ).usd) == "unlimited"
    assert decide_cap(allowed, "pilot", option, environ).usd == study.budget.pilot_usd
    for other in ("Unlimited", " unlimited", "UNLIMITED", "infinity", "unlimited\n"):
        with pytest.raises(UsageRefusedError):
            decide_cap(allowed, "full", other, {})


def test_a_lifted_cap_lets_everything_pass_and_is_written_as_its_word(tmp_path):
    with Ledger.open(tmp_path / "state" / "ledger.sqlite3", "s") as ledger:
        budget = Budget(ledger, "s", "run")
        with ledger.transaction():
            budget.approve(money.UNLIMITED, phase="full", series="x", source="a test")
        budget.start("a:b:1")
        budget.settle(budget.reserve("a:b:1", Decimal(10**9)), Decimal(10**9), measured=True)
        assert ledger.records(kind="approval")[0].body["cap_usd"] == "unlimited"
        assert budget.cap_usd() == money.UNLIMITED
        assert verify(ledger.records()).problems == ()
    assert dollars("unlimited") == "unlimited"
