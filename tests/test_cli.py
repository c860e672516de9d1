from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import studies
from pytest_studyminimal.cli import main


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.delenv("STUDY_BUDGET_USD", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return studies.make_study(tmp_path, tasks=("alpha", "beta"))


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_schema_is_a_json_schema_of_the_study_file():
    schema = json.loads(run("schema").stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"schema", "id", "tasks", "scenarios"} <= set(schema["required"])
    tier = schema["$defs"]["Tier"]["properties"]["input"]
    assert tier["type"] == "string"


def test_the_schema_accepts_the_quickstart_and_refuses_an_unknown_key():
    jsonschema = pytest.importorskip("jsonschema")
    import tomllib

    schema = json.loads(run("schema").stdout)
    table = tomllib.loads((studies.QUICKSTART / "study.toml").read_text())
    jsonschema.validate(table, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**table, "unknown": 1}, schema)


def test_a_plan_starts_nothing_and_says_so(study, tmp_path):
    # A program on PATH that leaves a trace, in place of git and every server.
    trap = tmp_path / "bin"
    trap.mkdir()
    for name in ("git", "node"):
        (trap / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        (trap / name).chmod(0o755)
    result = CliRunner(env={"PATH": str(trap)}).invoke(main, ["plan", str(study.folder)])
    assert result.exit_code == 0, result.output
    assert "network calls 0, agent processes 0" in result.stdout
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "state").exists()


def test_a_plan_has_order_reservations_and_the_worst_case(study):
    plan = json.loads(run("plan", study.folder, "--json").stdout)
    assert [one["id"] for one in plan["attempts"]] == [
        *("alpha:plain:1", "alpha:docs:1", "beta:docs:1", "beta:plain:1"),
    ]
    assert plan["worst_case_usd"] == "2"
    assert plan["cap_usd"] == "2"
    pilot = json.loads(run("plan", study.folder, "--phase", "pilot", "--json").stdout)
    assert len(pilot["attempts"]) == 2
    assert pilot["worst_case_usd"] == "1"


def test_a_plan_shows_what_each_arm_sends(study):
    plan = json.loads(run("plan", study.folder, "--json").stdout)
    assert [tool["name"] for tool in plan["arms"]["plain"]["body"]["tools"]] == [
        *("repo_list", "repo_read", "repo_search"),
    ]
    assert plan["arms"]["docs"]["servers"]["docs"]["argv"] == [
        "{python}",
        "docs_server.py",
        "{export}",
    ]
    assert plan["arms"]["docs"]["servers"]["docs"]["tools"] == [
        "doc.search",
        "doc.get",
        "handoff.resolve",
    ]


def test_with_a_root_pins_and_sources_are_verified(study):
    result = run("plan", study.folder, f"--study-root=corpus={study.checkout}")
    assert result.exit_code == 0
    assert "3 files, 0 left out; every source of the answer key is readable" in result.stdout
    study.edit(studies.git(study.checkout, "rev-parse", "HEAD"), "2" * 40)
    result = run("plan", study.folder, f"--study-root=corpus={study.checkout}")
    assert result.exit_code == 4
    assert result.stderr.startswith("studyminimal: corpus corpus: found no")
    assert result.stderr.count("\n") == 1


def test_after_a_pilot_a_plan_projects_its_cost(study, pytester):
    pytester.runpytest_inprocess("--study=pilot", *study.arguments, str(study.folder))
    plan = json.loads(run("plan", study.folder, "--json", f"--study-ledger={study.ledger}").stdout)
    spent = study.last_run().charged_usd
    assert plan["projected"]["usd"] == str(spent * 2)
    assert plan["projected"]["rehearsal"] is True
    text = run("plan", study.folder, f"--study-ledger={study.ledger}").stdout
    assert "no upper bound" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "found no study file, required one of study.toml or study.json"),
        (
            ["STUDY", "--study-connection=cli"],
            "--study-connection: found 'cli', required one of http",
        ),
        (["STUDY", "--study-root=x"], "--study-root: found 'x', required NAME=PATH"),
        (
            ["STUDY", "--verify"],
            "corpus corpus: found no checkout, required --study-root corpus=PATH",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_four(study, arguments, said):
    result = run("plan", *[str(study.folder) if one == "STUDY" else one for one in arguments])
    assert result.exit_code == 4
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
