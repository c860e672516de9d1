from __future__ import annotations

import pytest
from providers import scripted

import studies


@pytest.fixture(autouse=True)
def _no_study_in_the_environment(monkeypatch):
    """The variables of whoever runs these tests must not reach the studies in them."""
    for name in (
        "STUDY_MODEL",
        "STUDY_BUDGET_USD",
        "STUDY_INPUT_USD_PER_MILLION",
        "STUDY_OUTPUT_USD_PER_MILLION",
        "PYTEST_ADDOPTS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(studies.KEY_NAME, studies.KEY)


@pytest.fixture
def provider():
    """A provider whose every reply is a complete answer, until a test gives it another script."""
    from providers import message, text

    with scripted(message(text("The cap is cumulative: docs/budget.md:3."))) as one:
        yield one


@pytest.fixture
def run_pytest(pytester):
    """Run a study session in this process and return its result and all that it printed."""
    if not (pytester.path / "tox.ini").exists():
        pytester.makeini("[pytest]\n")
    pytester.syspathinsert()

    def run(*arguments):
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)

    return run
