"""Other plugins: same option names, random order, repeats, no terminal, no cache."""

from __future__ import annotations

import pytest

import studies

OTHER = """
def pytest_addoption(parser):
    group = parser.getgroup("other")
    for name in ("--budget", "--runner", "--report", "--html", "--metadata-file", "--scenario",
                 "--repeat", "--transport", "--pilot", "--dry-run", "--ledger", "--model", "--phase",
                 "--connection", "--root", "--rehearse", "--approve", "--tasks", "--cap"):
        group.addoption(name, default=None)
    parser.addini("budget", "other plugin", default="")
    parser.addini("default_study", "other plugin", default="")
"""


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url, tasks=("alpha", "beta"))


def test_a_plugin_with_all_the_plain_option_names(study, run_pytest, pytester):
    pytester.makepyfile(other_plugin=OTHER)
    result = run_pytest("-p", "other_plugin", "--help")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*--study=PHASE*", "*--approve-budget*"])
    run_pytest("-p", "other_plugin", "--study=pilot", *study.arguments).assert_outcomes(passed=2)


def test_every_name_of_ours_carries_the_prefix(run_pytest):
    lines = run_pytest("--help").outlines
    start = next(i for i, line in enumerate(lines) if line.startswith("controlled studies of"))
    ours = [line.split()[0] for line in lines[start + 1 :] if line.startswith("  --")]
    ours = ours[
        : next(
            (i for i, name in enumerate(ours) if not name.startswith(("--study", "--approve"))),
            None,
        )
    ]
    assert "--study-ledger=PATH" in ours
    assert [name for name in ours if not name.startswith("--study")] == ["--approve-budget"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_plugin_that_shuffles_items_does_not_shuffle_attempts(study, run_pytest, pytester, seed):
    pytester.makepyfile(
        shuffling=f"""
import random, pytest
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    random.Random({seed}).shuffle(items)
"""
    )
    run_pytest("--study=pilot", *study.arguments)
    result = run_pytest("-p", "shuffling", "--study=full", "--approve-budget", *study.arguments)
    assert result.ret == 0
    assert [record.attempt for record in study.records("start")][2:] == [
        *("alpha:plain:1", "alpha:docs:1", "beta:docs:1", "beta:plain:1"),
    ]


def test_a_plugin_that_reorders_after_us_stops_the_run(study, run_pytest, pytester):
    pytester.makepyfile(
        late="""
import pytest
@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtestloop(session):
    session.items.reverse()
    return (yield)
"""
    )
    result = run_pytest("-p", "late", "--study=pilot", *study.arguments)
    assert result.ret == 1
    assert study.records("start") == []
    assert study.statuses() == ["blocked", "invalid-setup"]
    result.stdout.fnmatch_lines(["*reached out of the frozen order*"])


def test_without_terminal_or_capture(study, run_pytest):
    assert run_pytest("--study=pilot", "-s", *study.arguments).ret == 0
    assert run_pytest("--study=pilot", "-p", "no:terminal", *study.arguments).ret == 0
    assert run_pytest("--study=pilot", "-p", "no:logging", *study.arguments).ret == 0


def test_ordinary_tests_are_left_out_of_a_study_session(study, run_pytest, pytester):
    (study.folder / "test_more.py").write_text("def test_more(): pass\n")
    result = run_pytest("--study=pilot", *study.arguments)
    result.assert_outcomes(passed=2, deselected=1)


def test_warnings_as_errors_do_not_hurt(study, run_pytest):
    run_pytest("--study=pilot", "-W", "error", *study.arguments).assert_outcomes(passed=2)


def test_a_rounding_decimal_context_in_a_conftest_changes_nothing(study, run_pytest, provider):
    from providers import Response, message, text

    usage = {"input_tokens": 1_000_001, "output_tokens": 999_999}
    provider.serve([Response(message(text("x"), usage=usage))])
    study.edit('pilot_usd = "1"', 'pilot_usd = "100"')
    (study.folder / "conftest.py").write_text(
        "import decimal\n"
        "decimal.getcontext().prec = 3\n"
        "decimal.DefaultContext.prec = 3\n"
        "decimal.getcontext().rounding = decimal.ROUND_DOWN\n"
    )
    import decimal

    with decimal.localcontext():
        run_pytest("--study=pilot", *study.arguments)
    assert study.records("settle")[0].body["charged_usd"] == "2.999998"
