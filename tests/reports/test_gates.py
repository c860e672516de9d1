"""Gates, margins and the published schema, over runs in real ledgers."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest
from reported import Reported, opened

from pytest_studyminimal.cli import main
from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.reports.document import document
from pytest_studyminimal.reports.effects import effect
from pytest_studyminimal.reports.gates import statement

CASES = Path(__file__).parent / "cases"
GATES = {"within_margin": [], "min_correctness": None, "max_usd": None, "max_missing": None}
TASKS = ("t1", "t2", "t3", "t4", "t5", "t6")
NAMES = [f"{task}:{arm}:1" for task in TASKS for arm in ("plain", "docs")]


@pytest.fixture
def ledger(tmp_path):
    with opened(tmp_path / "ledger.sqlite3") as ledger:
        yield ledger


def reported(ledger, outcomes=("correct",) * 12, more=0, **row):
    """A full run of six pairs whose second arm reads `more` tokens than the first."""
    run = Reported(ledger, NAMES, phase="full", **row)
    for number, name in enumerate(NAMES):
        tokens = 1000 + (more if number % 2 else 0) + number
        run.observe(
            name, usage=Usage(input_tokens=tokens, output_tokens=100), answer_sha256="e" * 64
        )
    with ledger.transaction():
        for name, outcome in zip(NAMES, outcomes, strict=False):
            judge(ledger, run, name, outcome)
    return run


def judge(ledger, run, name, outcome):
    body = {
        "packet": "p01",
        "answer_sha256": "e" * 64,
        "key_sha256": "b" * 64,
        "adjudicator": {"kind": "agent", "name": "a judge", "session": "s"},
        "outcome": outcome,
        "disputed": False,
        "citations": {"ok": 2, "no line": 1},
        "possible_unblinding": int(name.endswith("docs:1")),
    }
    ledger.append("verdict", account=run.budget.account, run=run.run, attempt=name, body=body)


def gates(run, **asked):
    return {one["gate"]: one["passed"] for one in document(run.view)["gates"]}


@pytest.mark.parametrize(
    ("metric", "interval", "said"),
    [
        ("prompt_tokens", [-5, 5], "equivalent within the margin"),
        ("prompt_tokens", [-50, 5], "not worse"),
        ("prompt_tokens", [-5, 11], "inconclusive"),
        ("prompt_tokens", [11, 50], "worse by more than the margin"),
        ("prompt_tokens", None, "unknown: no interval"),
        ("score", [-50, 5], "inconclusive"),
        ("score", [-50, -11], "worse by more than the margin"),
        ("score", [-5, 50], "not worse"),
    ],
)
def test_a_margin_is_spoken_of_as_the_interval_allows(metric, interval, said):
    assert statement(metric, "10", interval, 0) == said


def test_without_a_declared_margin_nothing_is_said_of_one(ledger):
    found = document(reported(ledger).view)

    assert "margin" not in found["effects"][0]["metrics"]["prompt_tokens"]
    assert found["gates"] == []


def test_gates_pass_over_whole_data_and_say_why(ledger):
    asked = {**GATES, "within_margin": ["prompt_tokens"], "min_correctness": "0.9", "max_usd": "1"}
    run = reported(ledger, gates=asked, margins={"prompt_tokens": "20"}, more=10)

    assert gates(run) == {
        "within_margin prompt_tokens of docs": True,
        "min_correctness of docs": True,
        "max_usd": True,
    }


def test_a_worse_arm_fails_its_gate(ledger):
    asked = {**GATES, "within_margin": ["prompt_tokens"], "max_usd": "0.05"}
    run = reported(ledger, gates=asked, margins={"prompt_tokens": "20"}, more=500)

    assert gates(run) == {"within_margin prompt_tokens of docs": False, "max_usd": False}


def test_a_gate_over_missing_data_fails_also_where_what_is_there_would_pass(ledger):
    asked = {**GATES, "within_margin": ["score"], "min_correctness": "0.5", "max_missing": 0}
    run = reported(ledger, ("correct",) * 11, gates=asked, margins={"score": "0.5"})

    assert set(gates(run).values()) == {False}


def test_the_command_exits_with_the_gates(ledger, capsys):
    run = reported(ledger, gates={**GATES, "max_usd": "1"}, rehearsal=True)
    place = str(ledger.path)

    with pytest.raises(SystemExit) as passed:
        main(["report", place, "--gates"])
    assert passed.value.code == 0
    assert "passed  max_usd" in capsys.readouterr().out
    run = reported(ledger, gates={**GATES, "max_usd": "0.01"}, run="run-2", rehearsal=True)
    with pytest.raises(SystemExit) as failed:
        main(["report", place, "--gates", "--run", run.run])
    assert failed.value.code == 1
    shown = capsys.readouterr().out
    assert "FAILED  max_usd" in shown
    assert "rehearsal, not evidence" in shown


def test_asking_for_gates_that_nobody_declared_is_a_usage_error(ledger, capsys):
    reported(ledger)

    with pytest.raises(SystemExit) as refused:
        main(["report", str(ledger.path), "--gates"])
    assert refused.value.code == 4
    assert "found no [gates]" in capsys.readouterr().err


def test_runs_are_never_pooled_and_the_line_says_what_differs(ledger, capsys):
    first = reported(ledger)
    other = {**ledger.records(run=first.run, kind="run")[0].body["series"], "model": "another"}
    second = reported(ledger, run="run-2", series=other)

    with pytest.raises(SystemExit) as refused:
        main(["report", str(ledger.path), "--run", first.run, "--run", second.run])
    assert refused.value.code == 4
    assert "they differ in model" in capsys.readouterr().err


def test_every_report_fits_the_published_schema(ledger, capsys):
    with pytest.raises(SystemExit):
        main(["schema", "--report"])
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema).validate
    asked = {**GATES, "min_correctness": "0.5"}
    whole = document(reported(ledger, gates=asked, margins={"score": "0.1"}).view)

    check(whole)
    check(document(Reported(ledger, NAMES, run="run-3").view))
    del whole["declarations"]
    with pytest.raises(jsonschema.ValidationError):
        check(whole)


def test_what_was_checked_of_the_answers_is_told(ledger):
    found = document(reported(ledger).view)["adjudication"]

    assert found["adjudicators"] == [{"kind": "agent", "name": "a judge", "verdicts": 12}]
    assert found["citations"] == {"no line": 12, "ok": 24}
    assert found["possible_unblinding"]["by_arm"] == {"plain": 0, "docs": 6}


def test_repetitions_of_a_task_are_not_independent():
    rows = json.loads((CASES / "repeats-not-independent.json").read_text())
    by_task = {}
    for task in sorted({row["task"] for row in rows}):
        sides = {
            (row["scenario"], row["repetition"]): row["correctness"]
            for row in rows
            if row["task"] == task
        }
        by_task[task] = [
            sides["doc-bridge-mcp", number] - sides["repository-only", number]
            for number in (1, 2, 3)
        ]
    found = effect(by_task, "seed")

    assert found.estimate == pytest.approx(1 / 6)
    assert found.standard_error == pytest.approx(1 / 6)
    tripled = effect({task: values * 3 for task, values in by_task.items()}, "seed")
    assert tripled.interval == found.interval
    assert (tripled.p, tripled.standard_error) == (found.p, found.standard_error)


def test_what_did_not_complete_stays_in_every_count(ledger):
    rows = json.loads((CASES / "failed-attempts-kept.json").read_text())
    names = [f"t{number}:{'plain' if number % 2 else 'docs'}:1" for number in range(len(rows))]
    run = Reported(ledger, names, cap="2", phase="full")
    words = {1.0: "correct", 0.5: "partial", 0.0: "incorrect"}
    for name, row in zip(names, rows, strict=True):
        status = row["status"]
        if status == "completed":
            run.observe(name, row["cost_usd"], answer_sha256="e" * 64)
        else:
            # A run stops at the first of these; what is charged before its stop is the same.
            run.record(name, "0", status=status)
    with ledger.transaction():
        for name, row in zip(names, rows, strict=True):
            if row["status"] == "completed":
                judge(ledger, run, name, words[row["correctness"]])
    found = document(run.view)["correctness"]["all"]

    assert len(document(run.view)["attempts"]) == 18
    assert (found["n"], found["missing"]) == (15, 3)
    assert Decimal(found["mean"]) == pytest.approx(Decimal("0.733333"), abs=Decimal("0.00001"))
    assert [round(float(one), 4) for one in found["range"]] == [0.6111, 0.7778]
    assert sorted(found["missing_because"]) == ["budget-exceeded", "invalid-setup", "timed-out"]
