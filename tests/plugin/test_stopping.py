"""Anything but completed stops the run; nothing is dropped, nothing is retried."""

from __future__ import annotations

import json

import pytest
from providers import Response, message, text, tool_use, tools

import studies
from pytest_studyminimal.protocol import money

ANSWER = Response(message(text("docs/budget.md:3")))


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url, tasks=("alpha", "beta"))


def properties(pytester):
    report = json.loads((pytester.path / ".report.json").read_text())
    return [
        {name: value for entry in test.get("user_properties", ()) for name, value in entry.items()}
        for test in report["tests"]
    ]


def test_a_failed_attempt_stops_the_run_and_the_rest_is_blocked(
    study, run_pytest, provider, pytester
):
    study.add("[pilot]\ntasks = 2\n")
    provider.serve([ANSWER, Response({"type": "error"}, status=500)])
    result = run_pytest("--study=pilot", "--json-report", *study.arguments)
    result.assert_outcomes(passed=1, failed=1, skipped=2)
    assert result.ret == 1
    assert study.statuses() == ["completed", "failed", "blocked", "blocked"]
    assert len(provider.received) == 2
    assert [one["status"] for one in properties(pytester)] == study.statuses()
    result.stdout.fnmatch_lines(
        [
            "the run stopped at alpha:docs:1 with failed (*HTTP 500*); 2 not reached and shown as blocked"
        ]
    )


def test_a_lost_response_keeps_its_reservation_and_says_usage_is_incomplete(
    study, run_pytest, provider
):
    provider.serve([Response({"type": "error"}, status=529)])
    run_pytest("--study=pilot", *study.arguments)
    first = study.last_run().lines[0].observation
    reserve = study.records("reserve")[0]
    assert money.text(first.charged_usd) == reserve.body["usd"]
    assert first.usage_complete is False
    assert study.records("settle")[0].body["measured"] is False
    assert study.last_run().balance.reserved_usd == 0


def test_an_item_beyond_the_cap_is_an_error_in_setup_with_one_line(
    study, run_pytest, provider, pytester
):
    result = run_pytest(
        "--study=pilot", "--study-budget-usd=0.001", "--json-report", *study.arguments
    )
    result.assert_outcomes(errors=1, skipped=1)
    assert result.ret == 1
    assert provider.received == []
    assert study.statuses() == ["blocked", "blocked"]
    result.stdout.fnmatch_lines(
        ["blocked: budget: cap 0.001 USD, spent 0, reserved 0, needed 0.00*"]
    )
    first = properties(pytester)[0]
    assert (first["status"], first["charged_usd"]) == ("blocked", "0")
    assert "turns" not in first


def test_a_call_beyond_the_cap_is_refused_before_it_is_sent(study, run_pytest, provider):
    costly = tools(tool_use(query="cap"), usage={"input_tokens": 3000, "output_tokens": 10})
    provider.serve([Response(costly)])
    # The first call fits, the second would not.
    result = run_pytest("--study=pilot", "--study-budget-usd=0.009", *study.arguments)
    result.assert_outcomes(failed=1, skipped=1)
    assert len(provider.received) == 1
    assert study.statuses() == ["blocked", "blocked"]
    line = study.last_run().lines[0]
    assert line.observation.reason.startswith(
        "budget: cap 0.009 USD, spent 0.001525, reserved 0, needed "
    )
    assert money.text(line.observation.charged_usd) == "0.001525"


def test_an_attempt_beyond_its_own_cap_is_budget_exceeded(study, run_pytest, provider):
    provider.serve([Response(tools(tool_use(query="cap")))])
    result = run_pytest("--study=pilot", "--study-attempt-budget-usd=0.0085", *study.arguments)
    assert result.ret == 1
    first = study.last_run().lines[0].observation
    assert first.status == "budget-exceeded"
    assert first.reason.startswith("attempt budget: cap 0.0085 USD, spent 0.0008, needed ")
    assert len(provider.received) == 1


def test_a_charge_above_its_reservation_is_recorded_as_it_is(study, run_pytest, provider):
    provider.serve(
        [Response(message(text("x"), usage={"input_tokens": 5_000_000, "output_tokens": 1}))]
    )
    result = run_pytest("--study=pilot", *study.arguments)
    first = study.last_run().lines[0].observation
    assert first.status == "budget-exceeded"
    assert money.text(first.charged_usd) == "2.5000025"
    assert first.cumulative_cap_exceeded is True
    result.stdout.fnmatch_lines(["*THE CAP WAS EXCEEDED*"])


def test_another_model_is_invalid_cost(study, run_pytest, provider):
    provider.serve([Response({**ANSWER.body, "model": "costly-model"})])
    run_pytest("--study=pilot", *study.arguments)
    first = study.last_run().lines[0].observation
    assert (first.status, first.reason) == (
        "invalid-cost",
        "served by model costly-model, required claude-haiku-5-5",
    )


def test_an_unusable_answer_is_completed_and_gives_no_extrapolation(study, run_pytest, provider):
    provider.serve([Response(message(text("half a"), stop_reason="max_tokens"))])
    result = run_pytest("--study=pilot", *study.arguments)
    assert result.ret == 0
    assert study.statuses() == ["completed", "completed"]
    result.stdout.fnmatch_lines(["extrapolation: missing*"])


def test_every_server_call_failing_is_invalid_setup(study, run_pytest, provider):
    call = Response(tools(tool_use(name="doc_get", path="no/such.md")))
    provider.serve([ANSWER, call, ANSWER])
    run_pytest("--study=pilot", *study.arguments)
    second = study.last_run().lines[1].observation
    assert (second.status, second.reason) == (
        "invalid-setup",
        "every call to server docs failed (1)",
    )
    assert second.tool_errors_by_name == {"doc_get": 1}


def test_a_changed_export_is_invalid_setup(study, run_pytest, provider):
    (study.folder / "conftest.py").write_text(
        "import os, pytest\n"
        "@pytest.fixture\n"
        "def study_servers(study_export, study_servers):\n"
        "    target = study_export.path / 'docs' / 'budget.md'\n"
        "    os.chmod(target, 0o644)\n"
        "    target.write_text('changed')\n"
        "    return study_servers\n"
    )
    run_pytest("--study=pilot", *study.arguments)
    first = study.last_run().lines[0].observation
    assert first.status == "invalid-setup"
    assert "docs/budget.md" in first.reason


def test_a_test_that_never_runs_its_attempt_fails(study, run_pytest, provider):
    (study.folder / "test_tiny.py").write_text("def test_attempt(study_attempt):\n    pass\n")
    result = run_pytest("--study=pilot", *study.arguments)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*the test ended without study_attempt.run()*"])
    assert provider.received == []
    assert study.statuses() == ["invalid-setup", "blocked"]


def test_a_failing_assertion_of_the_author_fails_the_item_and_not_the_attempt(study, run_pytest):
    text = studies.TEST_FILE + "    assert study_attempt.attempt.scenario == 'docs'\n"
    (study.folder / "test_tiny.py").write_text(text)
    result = run_pytest("--study=pilot", *study.arguments)
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1
    assert study.statuses() == ["completed", "completed"]


def test_a_second_run_of_one_attempt_is_refused(study, run_pytest, provider):
    (study.folder / "test_tiny.py").write_text(studies.TEST_FILE + "    study_attempt.run()\n")
    result = run_pytest("--study=pilot", *study.arguments)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["*alpha:plain:1 was started before; an attempt runs at most once*"]
    )
    assert len(study.records("start")) == len(provider.received)


def test_maxfail_reports_the_rest_as_blocked(study, run_pytest, provider):
    provider.serve([Response({}, status=500)])
    result = run_pytest("--study=pilot", "-x", *study.arguments)
    assert result.ret == 1
    assert study.statuses() == ["failed", "blocked"]
    result.stdout.fnmatch_lines(["alpha:docs:1 *blocked*"])


def test_an_xfail_mark_does_not_make_a_failed_attempt_a_success(study, run_pytest, provider):
    provider.serve([Response({}, status=500)])
    text = f"import pytest\n@pytest.mark.xfail(strict=False)\n{studies.TEST_FILE}"
    (study.folder / "test_tiny.py").write_text(text)
    assert run_pytest("--study=pilot", *study.arguments).ret == 1


def test_a_run_that_was_not_reached_at_all_is_not_a_success(study, run_pytest):
    text = f"import pytest\n@pytest.mark.skip\n{studies.TEST_FILE}"
    (study.folder / "test_tiny.py").write_text(text)
    assert run_pytest("--study=pilot", *study.arguments).ret == 1
    assert study.statuses() == ["invalid-setup", "blocked"]


def test_a_caught_failure_still_fails_its_item(study, run_pytest, provider):
    provider.serve([Response({}, status=500)])
    (study.folder / "test_tiny.py").write_text(
        "import pytest\n"
        "def test_attempt(study_attempt):\n"
        "    with pytest.raises(pytest.fail.Exception):\n"
        "        study_attempt.run()\n"
    )
    run_pytest("--study=pilot", *study.arguments).assert_outcomes(failed=1, skipped=1)


def test_an_attempt_that_the_author_skips_stops_the_run(study, run_pytest, provider):
    (study.folder / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def _half(request):\n"
        "    if 'plain' in request.node.name:\n"
        "        pytest.skip('not today')\n"
    )
    assert run_pytest("--study=pilot", *study.arguments).ret == 1
    assert provider.received == []
    assert study.statuses() == ["invalid-setup", "blocked"]


def test_a_lost_response_leaves_no_token_counts_in_the_reports(
    study, run_pytest, provider, pytester
):
    provider.serve([Response({}, status=529)])
    run_pytest("--study=pilot", "--json-report", *study.arguments)
    first = properties(pytester)[0]
    assert not {"input_tokens", "output_tokens", "cache_read_tokens"} & set(first)
    assert first["charged_usd"] != "0"


def test_another_approval_does_not_raise_what_a_run_announced(study, run_pytest, provider):
    from pytest_studyminimal.evidence.budget import Budget
    from pytest_studyminimal.evidence.ledger import Ledger

    (study.folder / "conftest.py").write_text(
        "import pytest\n"
        "from pathlib import Path\n"
        "from decimal import Decimal\n"
        "from pytest_studyminimal.evidence.budget import Budget\n"
        "from pytest_studyminimal.evidence.ledger import Ledger\n"
        "@pytest.fixture(autouse=True)\n"
        "def _meanwhile(study_export):\n"
        f"    with Ledger.open(Path({str(study.ledger)!r}), 'tiny') as ledger, ledger.transaction():\n"
        "        Budget(ledger, 'tiny', 'other').approve(\n"
        "            Decimal(9), phase='pilot', series='s', source='meanwhile')\n"
    )
    costly = tools(tool_use(query="cap"), usage={"input_tokens": 3000, "output_tokens": 10})
    provider.serve([Response(costly)])
    run_pytest("--study=pilot", "--study-budget-usd=0.009", *study.arguments)
    assert len(provider.received) == 1
    with Ledger.open(study.ledger, "tiny") as ledger:
        run = ledger.records(kind="run")[0].run
        assert money.text(Budget(ledger, "tiny", run).cap_usd()) == "0.009"
