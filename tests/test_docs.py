"""The documentation is checked by running it: study files load, commands work, lists are complete."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

import studies
from pytest_studyminimal.cli import main
from pytest_studyminimal.judging.key import AnswerKey
from pytest_studyminimal.protocol import manifest
from pytest_studyminimal.protocol.records import Status
from pytest_studyminimal.protocol.study import Limits, Metric

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(page, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_whole_study_of_the_docs_loads_and_states_the_defaults(tmp_path):
    whole, key = blocks("docs/study-file.md", "toml")
    (tmp_path / "study.toml").write_text(whole)
    (tmp_path / "answers.toml").write_text(key)
    study = manifest.load(tmp_path).study
    assert study.limits == Limits()
    AnswerKey.model_validate_json(json.dumps(tomllib.loads(key)))


def test_every_budget_value_of_the_docs_does_what_the_table_says(tmp_path):
    whole, key = blocks("docs/study-file.md", "toml")
    (tmp_path / "answers.toml").write_text(key)
    table = (
        (ROOT / "docs/study-file.md")
        .read_text()
        .partition("| budget value |")[2]
        .partition("\n\n")[0]
    )
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:]]
    checked = 0
    for values, verdict in rows:
        for value in re.findall(r"`([^`]+)`", values):
            written = {"null": None}.get(value, f"pilot_usd = {value}")
            if written is None:
                continue
            (tmp_path / "study.toml").write_text(whole.replace('pilot_usd = "1"', written))
            if "refused" in verdict:
                with pytest.raises(manifest.StudyFileError, match=r"budget\.pilot_usd"):
                    manifest.load(tmp_path)
            else:
                manifest.load(tmp_path)
            checked += 1
    assert checked >= 12


def test_the_study_in_one_screen_is_part_of_the_quickstart():
    (screen,) = blocks("README.md", "toml")
    shown = tomllib.loads(screen)
    real = tomllib.loads((studies.QUICKSTART / "study.toml").read_text())
    assert shown["scenarios"] == real["scenarios"]
    assert shown["budget"] == real["budget"]
    assert (
        shown["servers"]["docs"].items()
        <= {**real["servers"]["docs"], "ready": shown["servers"]["docs"]["ready"]}.items()
    )
    assert shown["tasks"][0]["id"] in {task["id"] for task in real["tasks"]}


def test_the_commands_of_the_docs_run(tmp_path, monkeypatch):
    """Every `$ …` line of these pages, in a folder with the quickstart alone."""
    shutil.copytree(studies.QUICKSTART, tmp_path / "studies" / "quickstart")
    lines = [
        line.removeprefix("$ ").removeprefix(".venv/bin/")
        for page in ("docs/running.md", "README.md", "docs/report.md")
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    commands = [line.partition("#")[0].split() for line in lines]
    assert len(commands) == 16
    programs = {
        "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        "studyminimal": [sys.executable, "-c", "from pytest_studyminimal.cli import main; main()"],
    }
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STUDY_BUDGET_USD", raising=False)
    for program, *arguments in commands:
        words, _, into = " ".join(arguments).partition(" > ")
        done = subprocess.run(
            [*programs[program], *words.split()],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if into:
            (tmp_path / into).write_text(done.stdout)
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert {"run", "observation", "verdict"} <= {json.loads(line)["kind"] for line in lines}
    assert {"report.html", "report.json", "report.csv", "out"} <= {
        file.name for file in tmp_path.iterdir()
    }


def test_the_margins_and_gates_of_the_docs_are_accepted(tmp_path):
    whole, key = blocks("docs/study-file.md", "toml")
    (tmp_path / "answers.toml").write_text(key)
    (declared,) = blocks("docs/report.md", "toml")
    (tmp_path / "study.toml").write_text(f"{whole}\n{declared}")
    study = manifest.load(tmp_path).study
    assert set(study.margins) == {"score", "prompt_tokens"}
    assert study.gates.max_missing == 0
    listed = (ROOT / "docs/report.md").read_text().partition("Metrics are ")[2].partition(".")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(get_args(Metric))


def test_the_authors_assertion_of_the_docs_works(pytester, monkeypatch):
    study = studies.make_study(pytester.path)
    pytester.makeini("[pytest]\n")
    (block,) = blocks("docs/running.md", "python")
    (study.folder / "test_tiny.py").write_text(block)
    monkeypatch.delenv("STUDY_BUDGET_USD", raising=False)
    assert pytester.runpytest_inprocess("--study=pilot", *study.arguments).ret == 0


def test_every_option_is_documented_and_every_documented_option_exists(pytester):
    text = (ROOT / "docs/running.md").read_text()
    table = text.partition("## Options")[2].partition("## Exit status")[0]
    documented = set(re.findall(r"`(--[a-z-]+)", table))
    help_text = pytester.runpytest_inprocess("--help").stdout.str()
    section = help_text.partition("controlled studies of coding agents:")[2].partition("\n\n")[0]
    offered = set(re.findall(r"^  (--[a-z-]+)", section, re.MULTILINE))
    assert documented == offered


def test_every_status_and_property_is_documented():
    text = (ROOT / "docs/running.md").read_text()
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) >= set(get_args(Status))
    named = {
        *(
            "study",
            "phase",
            "task",
            "scenario",
            "repetition",
            "transport",
            "model",
            "status",
            "reason",
        ),
        *("turns", "tool_calls", "input_tokens", "output_tokens", "cache_read_tokens"),
        *("cache_write_tokens", "charged_usd", "wall_s", "rehearsal", "series", "run"),
        *("reported_cost_usd", "computed_cost_usd", "agent_version", "packet"),
    }
    listed = text.partition("hold the same plain properties")[2].partition("An unknown figure")[0]
    assert set(re.findall(r"`([a-z_]+)`", listed)) == named


def test_the_commands_of_the_readme_are_one_line_each():
    commands = [block.strip() for block in blocks("README.md", "sh")]
    assert len(commands) == 2
    assert all("\n" not in command for command in commands)
    assert commands[0].endswith("pytest --study pilot")
    assert commands[1].endswith("pytest -n auto")


def test_the_changelog_knows_this_version():
    version = CliRunner().invoke(main, ["--version"]).stdout.split()[-1]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
