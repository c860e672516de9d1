"""Without `--study` on the command line itself nothing is spent, whatever configuration says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import studies


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url)


def test_a_bare_pytest_deselects_study_items(study, run_pytest, provider, pytester):
    pytester.makepyfile(test_own="def test_own(): pass")
    result = run_pytest("-v")
    result.assert_outcomes(passed=1, deselected=1)
    assert provider.received == []
    assert not study.ledger.exists()


def test_naming_a_study_item_runs_nothing_either(study, run_pytest, provider):
    result = run_pytest(str(study.folder / "test_tiny.py"))
    assert result.ret == 5
    assert provider.received == []


@pytest.mark.parametrize("place", ["addopts", "PYTEST_ADDOPTS", "argument file"])
def test_study_from_configuration_is_ignored_and_said_so(
    study, run_pytest, provider, pytester, monkeypatch, place
):
    arguments = ["--study=full", "--approve-budget", *study.arguments]
    given = []
    if place == "addopts":
        pytester.makeini(f"[pytest]\naddopts = {' '.join(arguments)}\n")
    elif place == "PYTEST_ADDOPTS":
        monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(arguments))
    else:
        (pytester.path / "more.txt").write_text("\n".join(arguments))
        given = ["@more.txt"]
    result = run_pytest(*given)
    assert result.ret == 5
    result.stdout.fnmatch_lines(["study: --study * is ignored; it counts only on the command line"])
    assert provider.received == []
    assert not study.ledger.exists()


def test_an_approval_from_configuration_approves_nothing(study, run_pytest, provider, monkeypatch):
    run_pytest("--study=pilot", *study.arguments)
    calls = len(provider.received)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--approve-budget")
    result = run_pytest("--study=full", *study.arguments)
    assert result.ret == 4
    assert len(provider.received) == calls


def test_the_command_line_wins_over_a_phase_in_configuration(study, run_pytest, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--study=full")
    result = run_pytest("--study", "pilot", *study.arguments)
    result.assert_outcomes(passed=2)


def test_without_study_no_room_but_the_options_is_loaded():
    code = (
        "import sys, pytest\n"
        "pytest.main(['-q', '-p', 'no:cacheprovider', '--co', '/dev/null'])\n"
        "mine = sorted(name for name in sys.modules if name.startswith('pytest_studyminimal'))\n"
        "print(mine)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(
        ["pytest_studyminimal", "pytest_studyminimal.plugin", "pytest_studyminimal.plugin.options"]
    )


def test_blocking_the_plugin_makes_study_an_unknown_option(study, run_pytest):
    result = run_pytest("-p", "no:studyminimal", "--study=pilot")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*unrecognized arguments: --study=pilot*"])


def test_a_wrong_phase_is_a_usage_error(study, run_pytest):
    result = run_pytest("--study=everything")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--study: invalid choice: 'everything'*"])


def test_a_phase_from_an_argument_file_never_replaces_the_command_lines(
    study, run_pytest, provider, pytester
):
    (pytester.path / "more.txt").write_text("--study=full")
    result = run_pytest("--study=pilot", "--approve-budget", "@more.txt", *study.arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: --study: found 'full' from elsewhere beside 'pilot' *"])
    assert provider.received == []


@pytest.mark.parametrize("option", ["--fixtures", "--fixtures-per-test", "--cache-show"])
def test_an_option_that_only_lists_opens_no_run(study, pytester, option, provider):
    result = pytester.runpytest_inprocess("--study=pilot", option, *study.arguments)
    assert result.ret == 4
    assert not study.ledger.exists()
