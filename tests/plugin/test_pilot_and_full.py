from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from providers import Response, message, text, tool_use, tools

import studies
from pytest_studyminimal.protocol import money


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url, tasks=("alpha", "beta"))


def properties_of(testcase):
    return {one.get("name"): one.get("value") for one in testcase.iter("property")}


def test_a_pilot_runs_both_arms_of_the_first_task_in_order(study, run_pytest, provider):
    result = run_pytest("--study=pilot", "-v", *study.arguments)
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    assert [line.attempt.id for line in study.last_run().lines] == ["alpha:plain:1", "alpha:docs:1"]
    offered = [[tool["name"] for tool in one.json["tools"]] for one in provider.received]
    repository = ["repo_list", "repo_read", "repo_search"]
    assert offered == [repository, [*repository, "doc_search", "doc_get", "handoff_resolve"]]
    result.stdout.fnmatch_lines(
        [
            "2 attempts by anthropic model claude-haiku-5-5 under a cap of $1, $0 of it committed",
            "*alpha:plain:1* completed 1 turns · 0 tools · 1,200 in · 80 out · $0.0008 *",
            "*extrapolation: $0.0016 × 2 = $0.0032 *4 attempts",
            "*no upper bound*",
        ]
    )


def test_the_prompt_is_the_questions_bytes_and_nothing_else(study, run_pytest, provider):
    run_pytest("--study=pilot", *study.arguments)
    question = "What does the alpha budget reserve? Cite paths and lines."
    for one in provider.received:
        assert one.json["messages"] == [{"role": "user", "content": question}]
        assert "system" not in one.json
        assert (one.json["temperature"], one.json["max_tokens"]) == (0, 1024)


def test_a_full_run_needs_an_approval_and_prints_what_the_pilot_measured(study, run_pytest):
    run_pytest("--study=pilot", *study.arguments)
    result = run_pytest("--study=full", *study.arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: --study full: found no approval, required --approve-budget*$0.0016*"]
    )
    assert len(study.records("run")) == 1


def test_a_full_run_needs_a_completed_pilot_of_its_series(study, run_pytest, provider):
    result = run_pytest("--study=full", "--approve-budget", *study.arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: *found no completed pilot, required *pytest --study pilot"]
    )
    assert provider.received == []


def test_a_pilot_of_another_series_approves_nothing(study, run_pytest):
    run_pytest("--study=pilot", *study.arguments)
    study.edit('model = "claude-haiku-5-5"', 'model = "claude-haiku-5-5"\nalias = true')
    result = run_pytest("--study=full", "--approve-budget", *study.arguments)
    assert result.ret == 4
    result.stderr.fnmatch_lines(["ERROR: *another series (differs in protocol)*"])


def test_a_narrowed_pilot_is_partial_and_approves_nothing(study, run_pytest):
    result = run_pytest("--study=pilot", "-k", "plain", *study.arguments)
    result.assert_outcomes(passed=1, deselected=1)
    assert study.statuses() == ["completed", "not selected"]
    result.stdout.fnmatch_lines(["*partial (1 of 2)*", "*extrapolation: missing*"])
    result = run_pytest("--study=full", "--approve-budget", *study.arguments)
    assert result.ret == 4


def test_the_whole_matrix_runs_in_the_frozen_order(study, run_pytest):
    study.edit("repetitions = 1", "repetitions = 2")
    run_pytest("--study=pilot", *study.arguments)
    result = run_pytest("--study=full", "--approve-budget", *study.arguments)
    assert result.ret == 0
    assert [record.attempt for record in study.records("start")][2:] == [
        *("alpha:plain:1", "alpha:docs:1", "alpha:docs:2", "alpha:plain:2"),
        *("beta:docs:1", "beta:plain:1", "beta:plain:2", "beta:docs:2"),
    ]


def test_the_cap_is_cumulative_over_pilot_and_full(study, run_pytest):
    run_pytest("--study=pilot", *study.arguments)
    run_pytest("--study=full", "--approve-budget", *study.arguments)
    run = study.last_run()
    assert money.text(run.balance.committed_usd) == money.text(run.balance.spent_usd) == "0.0048"
    assert money.text(run.charged_usd) == "0.0032"


def test_every_paid_call_was_on_disk_before_it_and_settled_after_it(study, run_pytest, provider):
    turns = [tools(tool_use(query="cap")), message(text("docs/budget.md:3"))]
    provider.serve([Response(turn) for turn in (*turns, *turns)])
    run_pytest("--study=pilot", *study.arguments)
    kinds = [(record.kind, record.attempt) for record in study.records() if record.attempt]
    for attempt in ("alpha:plain:1", "alpha:docs:1"):
        mine = [kind for kind, name in kinds if name == attempt]
        assert mine == ["start", "reserve", "settle", "reserve", "settle", "observation"]


def test_junit_json_and_ledger_hold_the_same_figures(study, run_pytest, pytester):
    run_pytest("--study=pilot", "--junitxml=j.xml", "--json-report", *study.arguments)
    cases = [properties_of(case) for case in ET.parse(pytester.path / "j.xml").iter("testcase")]
    report = json.loads((pytester.path / ".report.json").read_text())
    plain = [
        {name: value for entry in test["user_properties"] for name, value in entry.items()}
        for test in report["tests"]
    ]
    run = study.last_run()
    for case, entry, line in zip(cases, plain, run.lines, strict=True):
        assert {name: str(value) for name, value in entry.items()} == case
        assert {type(value) for value in entry.values()} <= {str, int, float}
        seen = line.observation
        assert entry["charged_usd"] == money.text(seen.charged_usd)
        assert (entry["task"], entry["scenario"], entry["repetition"]) == (
            line.attempt.task,
            line.attempt.scenario,
            line.attempt.repetition,
        )
        assert (entry["input_tokens"], entry["output_tokens"]) == (1200, 80)
        assert entry["wall_s"] == seen.wall_s
        assert entry["rehearsal"] == 0
        assert entry["run"] == run.row.run


def test_collecting_only_starts_nothing_and_writes_nothing(study, run_pytest, provider):
    result = run_pytest("--study=full", "--collect-only", "-q", *study.arguments)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*[[]alpha:plain:1]", "*[[]alpha:docs:1]", "4 tests collected*"])
    assert not study.ledger.exists()
    assert provider.received == []


def test_an_unreadable_study_is_one_line_also_when_only_collecting(study, run_pytest):
    study.edit('corpus = "corpus"', 'corpus = "corpora"')
    for only in ((), ("--collect-only",)):
        result = run_pytest("--study=pilot", *only, *study.arguments)
        assert result.ret == 4
        assert [line for line in result.errlines if line] == [
            f'ERROR: {study.folder}/study.toml: tasks[0].corpus: found "corpora", required one of corpus'
        ]


def test_the_run_row_is_a_pre_registration(study, run_pytest, pytester):
    studies.git(pytester.path, "init", "-q", ".")
    studies.git(pytester.path, "add", "studies")
    studies.git(pytester.path, "commit", "-qm", "frozen")
    run_pytest("--study=pilot", *study.arguments)
    body = study.last_run().row.body
    assert body["study_folder"] == {
        "commit": studies.git(pytester.path, "rev-parse", "HEAD"),
        "dirty": False,
    }
    assert [one["id"] for one in body["planned"]] == ["alpha:plain:1", "alpha:docs:1"]
    assert body["corpora"]["corpus"]["commit"] == studies.git(study.checkout, "rev-parse", "HEAD")
    (study.folder / "answers.toml").write_text(
        (study.folder / "answers.toml").read_text() + "# later\n"
    )
    run_pytest("--study=pilot", *study.arguments)
    assert study.last_run().row.body["study_folder"]["dirty"] is True


def test_a_full_run_may_be_narrowed_to_one_arm_after_a_whole_pilot(study, run_pytest):
    run_pytest("--study=pilot", *study.arguments)
    result = run_pytest("--study=full", "--approve-budget", "-k", "plain", *study.arguments)
    assert result.ret == 0
    assert study.statuses() == ["completed", "not selected", "not selected", "completed"]


def test_an_engine_that_changes_during_the_run_is_invalid_setup(study, run_pytest):
    study.edit("[scenarios.plain]", 'identity = ["engine.txt"]\n[scenarios.plain]')
    (study.folder / "engine.txt").write_text("one")
    (study.folder / "conftest.py").write_text(
        "import pathlib, pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def _meanwhile(study_budget):\n"
        "    pathlib.Path(__file__).with_name('engine.txt').write_text('two')\n"
    )
    assert run_pytest("--study=pilot", *study.arguments).ret == 1
    assert study.statuses() == ["completed", "invalid-setup"]
    assert "changed identity file" in study.last_run().lines[1].observation.reason


def test_a_filter_of_the_study_folders_repository_never_runs(study, run_pytest, pytester):
    studies.git(pytester.path, "init", "-q", ".")
    (pytester.path / ".gitattributes").write_text("*.toml filter=x\n")
    studies.git(pytester.path, "add", "studies", ".gitattributes")
    studies.git(pytester.path, "commit", "-qm", "frozen")
    marker = pytester.path / "ran"
    studies.git(pytester.path, "config", "filter.x.clean", f"touch {marker}; cat")
    (study.folder / "study.toml").touch()
    assert run_pytest("--study=pilot", *study.arguments).ret == 0
    assert study.last_run().row.body["study_folder"]["dirty"] is False
    assert not marker.exists()


@pytest.mark.parametrize(
    ("served", "status"),
    [
        ("claude-haiku-5-5-20261007", "completed"),
        ("claude-haiku-5-5-turbo-max", "invalid-cost"),
        ("claude-haiku-5", "invalid-cost"),
    ],
)
def test_an_alias_stands_for_its_dated_versions_alone(study, run_pytest, provider, served, status):
    study.edit('model = "claude-haiku-5-5"', 'model = "claude-haiku-5-5"\nalias = true')
    provider.serve([Response(message(text("x"), model=served))])
    run_pytest("--study=pilot", *study.arguments)
    assert study.statuses()[0] == status


def test_noise_and_cut_results_of_an_attempt_are_recorded(study, run_pytest, provider):
    server = study.folder / "docs_server.py"
    source = server.read_text()
    study.edit('"docs_server.py"', '"noisy.py"')
    (study.folder / "noisy.py").write_text(
        "import os, pathlib, runpy, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "if (here / 'ready').exists():\n"
        "    print('chatty line', flush=True)\n"
        "sys.argv[0] = str(here / 'docs_server.py')\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    (study.folder / "conftest.py").write_text(
        "import pathlib, pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def _chatty(study_budget):\n"
        "    pathlib.Path(__file__).with_name('ready').touch()\n"
    )
    study.edit("[limits]", "[limits]\ntool_result_bytes = 60")
    assert source
    provider.serve(
        [
            Response(message(text("x"))),
            Response(tools(tool_use(name="doc_get", path="docs/budget.md"))),
            Response(message(text("x"))),
        ]
    )
    run_pytest("--study=pilot", *study.arguments)
    second = study.last_run().lines[1].observation
    assert second.status == "completed"
    assert second.server_noise_lines == {"docs": 1}
    assert second.tool_results_cut == 1
    assert second.cut_results_original_bytes[0] > 60
