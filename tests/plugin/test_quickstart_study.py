"""The quickstart study as it is shipped: both phases, deterministic, rehearsed and marked as such."""

from __future__ import annotations

import shutil

import pytest

import studies
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.protocol import money
from pytest_studyminimal.reports.view import view


@pytest.fixture
def kit(pytester, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(pytester.path / "state"))
    shutil.copytree(studies.QUICKSTART, pytester.path / "studies" / "quickstart")
    return pytester.path / "state" / "studyminimal" / "quickstart" / "ledger.sqlite3"


def figures(path):
    with Ledger.open(path, "quickstart") as ledger:
        runs = [view(ledger, row.run) for row in ledger.records(kind="run")]
    return [
        [
            (
                line.attempt.id,
                line.status,
                line.observation.usage,
                money.text(line.observation.charged_usd),
            )
            for line in run.lines
        ]
        for run in runs
    ]


def test_pilot_and_full_run_complete_and_two_runs_give_the_same_figures(kit, run_pytest):
    for _ in range(2):
        assert run_pytest("--study=pilot").ret == 0
        assert run_pytest("--study=full", "--approve-budget").ret == 0
    pilot, full, pilot_again, full_again = figures(kit)
    assert (len(pilot), len(full)) == (2, 12)
    assert pilot == pilot_again
    assert full == full_again
    assert {status for _, status, _, _ in full} == {"completed"}
    assert full[:2] == pilot


def test_the_treatment_arm_really_uses_its_server(kit, run_pytest):
    run_pytest("--study=pilot")
    with Ledger.open(kit, "quickstart") as ledger:
        lines = view(ledger, ledger.records(kind="run")[0].run).lines
    used = {line.attempt.scenario: set(line.observation.tool_calls_by_name) for line in lines}
    assert not {name for name in used["repository-only"] if not name.startswith("repo_")}
    assert {name for name in used["docs-mcp"] if name.startswith("doc_")}


def test_answers_cite_what_was_really_read(kit, run_pytest):
    run_pytest("--study=pilot")
    with Ledger.open(kit, "quickstart") as ledger:
        answers = [record.private["answer"] for record in ledger.records(kind="observation")]
    assert all(".md:" in answer or ".py:" in answer for answer in answers)


def test_a_rehearsal_is_marked_everywhere_and_has_its_own_account(kit, run_pytest, pytester):
    result = run_pytest("--study=pilot", "--junitxml=j.xml")
    result.stdout.fnmatch_lines(
        ["*rehearsal, not evidence*", "rehearsal: the model is local and scripted*"]
    )
    assert '<property name="rehearsal" value="1"' in (pytester.path / "j.xml").read_text()
    with Ledger.open(kit, "quickstart") as ledger:
        row = ledger.records(kind="run")[0]
        observation = ledger.records(kind="observation")[0]
    assert row.account == f"rehearsal:{row.run}"
    assert row.body["series"]["rehearsal"] is True
    assert observation.body["rehearsal"] is True


def test_any_study_can_be_rehearsed_without_a_key_and_without_its_account(
    pytester, run_pytest, monkeypatch
):
    study = studies.make_study(pytester.path, base_url="https://provider.invalid")
    monkeypatch.delenv(studies.KEY_NAME)
    result = run_pytest("--study=pilot", "--study-rehearse", *study.arguments)
    assert result.ret == 0
    run = study.last_run()
    assert run.row.body["rehearsal"] is True
    with Ledger.open(study.ledger, "tiny") as ledger:
        assert ledger.balance("tiny").committed_usd == 0


def test_a_rehearsed_pilot_does_not_approve_a_paid_full_run(pytester, run_pytest, provider):
    study = studies.make_study(pytester.path, base_url=provider.base_url)
    run_pytest("--study=pilot", "--study-rehearse", *study.arguments)
    result = run_pytest("--study=full", "--approve-budget", *study.arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*another series (differs in provider, rehearsal)*"])
    assert provider.received == []
