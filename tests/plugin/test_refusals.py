"""What would break a study is refused in one line, with exit status 4, before anything is spent."""

from __future__ import annotations

import pytest

import studies


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url)


def refused(result, *patterns):
    """One line of error, exit status 4, and no traceback."""
    assert result.ret == 4
    errors = [line for line in result.errlines if line.strip()]
    assert len(errors) == 1, errors
    result.stderr.fnmatch_lines([f"ERROR: {pattern}" for pattern in patterns])
    assert "Traceback" not in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--reruns=2"], "--reruns: found with --study, required without it*at most once"),
        (["--lf"], "--lf: *earlier outcomes is a retry"),
        (["--ff"], "--ff: *retry"),
        (["--nf"], "--nf: *retry"),
        (["--sw"], "--sw: *retry"),
        (["--sw-reset", "-p", "cacheprovider"], "--sw*: *retry"),
        (["--count=2"], "--count: *at most once"),
        (["--setup-only"], "--setup-only: *"),
        (["--setup-plan"], "--setup-*: *"),
        (["--pdb"], "--pdb: *"),
        (["--full-trace"], "--full-trace: *"),
        (["--continue-on-collection-errors"], "--continue-on-collection-errors: *"),
        (
            ["--timeout=5", "--timeout-method=thread"],
            "timeout_method: found 'thread', required 'signal'*",
        ),
        (
            ["--study-budget-usd=nan"],
            "--study-budget-usd: found 'nan', required a decimal number such as 0.10*",
        ),
        (["--study-budget-usd=0"], "--study-budget-usd: found '0', required an amount above 0*"),
        (["--study-budget-usd="], "--study-budget-usd: found '', required *"),
        (["--study-budget-usd=unlimited"], "--study-budget-usd: found 'unlimited', required *"),
        (["--study-attempt-budget-usd=-1"], "--study-attempt-budget-usd: found '-1', required *"),
        (
            ["--study-input-usd-per-million=1,5"],
            "--study-input-usd-per-million: found '1,5', required *",
        ),
        (["--study-output-usd-per-million=1e3"], "--study-output-usd-per-million: found '1e3', *"),
        (
            ["--study-root=nowhere"],
            "--study-root: found 'nowhere', required NAME=PATH with NAME one of corpus, engine",
        ),
        (["--study-root=other=/tmp"], "--study-root: found 'other=/tmp', required NAME=PATH *"),
        (["--study-connection=cli"], "--study-connection: found 'cli', required one of http"),
    ],
)
def test_an_option_that_would_break_the_study(study, provider, pytester, arguments, pattern):
    result = pytester.runpytest_inprocess("--study=pilot", *study.arguments, *arguments)
    refused(result, pattern)
    assert provider.received == []
    assert not study.ledger.exists()


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        ("STUDY_MODEL", "other", "STUDY_MODEL: found 'other', required 'claude-haiku-5-5'"),
        ("STUDY_BUDGET_USD", "inf", "STUDY_BUDGET_USD: found 'inf', required *"),
        ("STUDY_BUDGET_USD", "", "STUDY_BUDGET_USD: found '', required *"),
        ("STUDY_INPUT_USD_PER_MILLION", "true", "STUDY_INPUT_USD_PER_MILLION: found 'true', *"),
        (studies.KEY_NAME, "", f"{studies.KEY_NAME}: found nothing, required *"),
        (studies.KEY_NAME, "sk-a\r\nx: y", f"{studies.KEY_NAME}: found *line break*, required *"),
    ],
)
def test_a_variable_that_cannot_be_used(
    study, run_pytest, provider, monkeypatch, name, value, pattern
):
    monkeypatch.setenv(name, value)
    result = run_pytest("--study=pilot", *study.arguments)
    refused(result, pattern)
    assert "x: y" not in result.stdout.str() + result.stderr.str()
    assert provider.received == []


def test_a_missing_key(study, run_pytest, monkeypatch):
    monkeypatch.delenv(studies.KEY_NAME)
    refused(
        run_pytest("--study=pilot", *study.arguments),
        f"{studies.KEY_NAME}: found nothing, required *",
    )


def test_a_flaky_mark_on_the_studys_test(study, run_pytest, provider):
    (study.folder / "test_tiny.py").write_text(
        f"import pytest\n@pytest.mark.flaky(reruns=2)\n{studies.TEST_FILE}"
    )
    refused(run_pytest("--study=pilot", *study.arguments), "*found the mark flaky, required none*")
    assert provider.received == []


def test_one_attempt_in_two_test_functions(study, run_pytest):
    second = studies.TEST_FILE.replace("test_attempt", "test_again")
    (study.folder / "test_tiny.py").write_text(studies.TEST_FILE + second)
    refused(
        run_pytest("--study=pilot", *study.arguments), "alpha:plain:1: found in several test items*"
    )


def test_an_attempt_multiplied_by_a_parametrisation(study, run_pytest):
    text = f"import pytest\n@pytest.mark.parametrize('n', [1, 2])\n{studies.TEST_FILE}"
    (study.folder / "test_tiny.py").write_text(
        text.replace("(study_attempt)", "(study_attempt, n)")
    )
    refused(run_pytest("--study=pilot", *study.arguments), "*no attempt of the plan*")


def test_two_studies_in_one_session(study, run_pytest, pytester, provider):
    other = studies.make_study(pytester.path / "more", base_url=provider.base_url)
    (other.folder / "test_tiny.py").rename(other.folder / "test_other.py")
    result = run_pytest("--study=pilot", *study.arguments, str(study.folder), str(other.folder))
    refused(result, "--study: found several studies (*), required one per session")


def test_a_test_file_that_cannot_be_imported_opens_no_run(study, run_pytest, provider):
    (study.folder / "test_broken.py").write_text("import no_such_module\n")
    result = run_pytest("--study=pilot", *study.arguments)
    assert result.ret == 2
    result.stdout.fnmatch_lines(["*1 error during collection*"])
    assert provider.received == []
    assert not study.ledger.exists()


def test_no_study_at_all(run_pytest, pytester):
    pytester.makeini("[pytest]\n")
    refused(run_pytest("--study=pilot"), "--study: found none, required one study folder*")


def test_several_studies_and_none_named(study, run_pytest, pytester, provider):
    studies.make_study(pytester.path / "x", base_url=provider.base_url).folder.rename(
        pytester.path / "studies" / "other"
    )
    refused(
        run_pytest("--study=pilot"),
        "--study: found studies/other, studies/tiny, required one study folder*",
    )


def test_a_default_study_that_is_none(study, run_pytest, pytester):
    pytester.makeini("[pytest]\nstudy_default = nowhere\n")
    refused(
        run_pytest("--study=pilot"),
        "study_default: found 'nowhere', required a folder with a study.toml*",
    )


def test_the_default_study_of_the_ini_file(study, run_pytest, pytester):
    (pytester.path / "studies").rename(pytester.path / "deep")
    pytester.makeini("[pytest]\nstudy_default = deep/tiny\ntestpaths = tests\n")
    run_pytest("--study=pilot", *study.arguments).assert_outcomes(passed=2)


def test_a_ledger_inside_a_corpus_checkout(study, run_pytest, provider):
    place = study.checkout / "deep" / "ledger.sqlite3"
    result = run_pytest("--study=pilot", study.arguments[0], f"--study-ledger={place}")
    refused(result, "*found a ledger inside *, required one outside every checkout")
    assert not place.parent.exists()


def test_a_cap_below_what_is_committed(study, run_pytest, provider):
    run_pytest("--study=pilot", *study.arguments)
    result = run_pytest("--study=pilot", "--study-budget-usd=0.001", *study.arguments)
    refused(result, "budget: cap 0.001 USD, spent 0.0016, *")
    assert len(study.records("run")) == 1


def test_a_session_with_nothing_selected_is_status_five(study, run_pytest):
    result = run_pytest("--study=pilot", "-k", "zzz", *study.arguments)
    assert result.ret == 5
    assert not study.ledger.exists()


@pytest.mark.parametrize(
    "option", ["--study-ledger=~nosuchuser/l", "--study-root=corpus=~nosuchuser/x"]
)
def test_a_home_that_does_not_exist(study, pytester, option):
    result = pytester.runpytest_inprocess("--study=pilot", *study.arguments, option)
    refused(result, "found '~nosuchuser/*', required a path")


def test_a_local_root_of_no_corpus(study, run_pytest):
    (study.folder / "study.local.toml").write_text('[roots]\nother = "x"\n')
    refused(
        run_pytest("--study=pilot", *study.arguments),
        "*study.local.toml: roots: found 'other', required one of corpus, engine",
    )


def test_prices_below_the_table_are_refused_however_they_come(study, run_pytest, monkeypatch):
    option = "--study-input-usd-per-million=0.000000000001"
    refused(
        run_pytest("--study=pilot", option, *study.arguments),
        "*found '0.000000000001', required at least 0.5,*",
    )
    monkeypatch.setenv("STUDY_OUTPUT_USD_PER_MILLION", "0.1")
    refused(
        run_pytest("--study=pilot", *study.arguments),
        "STUDY_OUTPUT_USD_PER_MILLION: found '0.1', required at least 2.5,*",
    )


@pytest.mark.parametrize("option", ["--study-budget-usd=1000", "--study-input-usd-per-million=5"])
def test_money_from_configuration_is_refused(study, run_pytest, monkeypatch, option):
    monkeypatch.setenv("PYTEST_ADDOPTS", option)
    name = option.partition("=")[0]
    refused(
        run_pytest("--study=pilot", *study.arguments),
        f"{name}: found elsewhere, required on the command line*",
    )


def test_an_answer_key_inside_the_corpus(pytester, provider, run_pytest):
    probe = studies.make_study(pytester.path / "probe", base_url=provider.base_url)
    key = (probe.folder / "answers.toml").read_text()
    study = studies.make_study(
        pytester.path, base_url=provider.base_url, files={**studies.FILES, "notes/old.txt": key}
    )
    refused(
        run_pytest("--study=pilot", str(study.folder), *study.arguments),
        "corpus corpus: found this study's answer key *",
    )
    study.edit("[corpora.corpus]", '[corpora.corpus]\nexclude = ["notes"]')
    assert run_pytest("--study=pilot", str(study.folder), *study.arguments).ret == 0


def test_a_key_in_a_variable_that_every_child_gets(study, run_pytest):
    study.edit(f'key = "{studies.KEY_NAME}"', 'key = "LOGNAME"')
    refused(
        run_pytest("--study=pilot", *study.arguments),
        "*study.toml: connections.http: *a variable of its own*",
    )
