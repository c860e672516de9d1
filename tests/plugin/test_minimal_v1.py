"""The study of six questions: its plan, its two arms, and that no word of its key stands elsewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sessions

import studies
from pytest_studyminimal.judging.key import load_key
from pytest_studyminimal.protocol.manifest import load

STUDY = Path(__file__).resolve().parents[2] / "studies" / "minimal_v1"
ARMS = ("repository-only", "doc-bridge-mcp")


@pytest.fixture(scope="module")
def folder():
    return load(STUDY)


def collected(phase):
    done = subprocess.run(
        [*studies.PYTEST, "-q", "--study", phase, "--collect-only", str(STUDY)],
        cwd=STUDY.parents[1],
        env=studies.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if "[" in line]


def test_the_full_run_has_thirty_six_attempts_and_the_first_arm_alternates(folder):
    tasks = (
        *("bridge-discovery", "bridge-architecture", "chat-discovery", "chat-architecture"),
        *("playbook-documentation", "playbook-architecture"),
    )

    assert tuple(task.id for task in folder.study.tasks) == tasks
    assert tuple(folder.study.scenarios) == ARMS
    names = collected("full")
    assert len(set(names)) == 36
    assert names == [
        f"{task}:{ARMS[(place + index + repetition - 1) % 2]}:{repetition}"
        for index, task in enumerate(tasks)
        for repetition in (1, 2, 3)
        for place in (0, 1)
    ]


def test_the_pilot_has_the_first_task_in_both_arms():
    assert collected("pilot") == [f"bridge-discovery:{arm}:1" for arm in ARMS]


def test_the_pins_the_prices_and_the_build_are_the_protocols(folder):
    study = folder.study

    assert {name: pin.commit[:8] for name, pin in study.corpora.items()} == {
        "doc-bridge": "948e8b22",
        "agentskit-chat": "9c431e98",
        "agents-playbook": "c922b522",
    }
    assert study.default_connection == "cli"
    assert study.connections["cli"].version == "2.1.296"
    assert {one.model for one in study.connections.values()} == {"claude-haiku-5-5"}
    assert study.attempt_usd(study.connections["cli"]) == study.budget.attempt_usd
    assert all(len(task.question.encode()) <= study.limits.prompt_bytes for task in study.tasks)
    assert not any("\n" in task.question for task in study.tasks)


def test_the_digest_is_that_of_the_files(folder):
    assert load(STUDY).digest == folder.digest
    assert folder.study.digest("0" * 64) != folder.digest


def test_no_proposition_and_no_source_stands_outside_the_key(folder):
    shown = "".join(
        (STUDY / name).read_text(encoding="utf-8")
        for name in ("study.toml", "protocol.md", "test_minimal_v1.py")
    )

    for expected in load_key(folder).tasks.values():
        assert not any(line in shown for line in (*expected.propositions, *expected.sources))
        # Names in a proposition, such as an algorithm's or an event's, would give it away alone.
        names = re.findall(r"@?\w+(?:[-./]\w+)+", " ".join(expected.propositions))
        assert [name for name in names if name in shown] == []
    assert re.findall(r"ADR.?\d", shown) == []


def test_a_plan_shows_both_commands_which_differ_in_the_server_alone():
    done = sessions.studyminimal("plan", STUDY, "--json")

    plan = json.loads(done.stdout)
    plain, server = (plan["arms"][arm]["command"] for arm in ARMS)
    assert len(plan["attempts"]) == 36
    assert {one["first_reservation_usd"] for one in plan["attempts"]} == {"0.1"}
    differing = [place for place, word in enumerate(plain) if server[place] != word]
    assert [plain[place - 1] for place in differing] == ["--allowedTools", "--mcp-config"]
    assert server[differing[0]].removeprefix(plain[differing[0]]) == (
        ",mcp__doc-bridge__doc_search,mcp__doc-bridge__doc_get,mcp__doc-bridge__handoff_resolve"
    )


def test_a_plan_for_people_lists_every_attempt_and_starts_nothing():
    lines = sessions.studyminimal("plan", STUDY).stdout.splitlines()

    assert "full · 36 attempts" in lines[0]
    assert lines[0].endswith("network calls 0, agent processes 0")
    assert sum("$0.1" in line and line.lstrip()[:1].isdigit() for line in lines) == 36
    for arm in ARMS:
        assert any(line.startswith(f"arm {arm}: claude -p --model ") for line in lines)


def test_the_other_route_asks_the_api_at_temperature_zero():
    done = sessions.studyminimal("plan", STUDY, "--study-connection", "http", "--json")

    arm = json.loads(done.stdout)["arms"]["doc-bridge-mcp"]
    assert arm["request"] == "POST https://api.anthropic.com/v1/messages"
    assert (arm["body"]["temperature"], arm["body"]["max_tokens"]) == (0, 1024)
    assert arm["key"] == "ANTHROPIC_API_KEY"


def test_a_pilot_without_checkouts_is_refused_in_one_line_and_spends_nothing(tmp_path):
    copy = tmp_path / "studies" / "minimal_v1"
    shutil.copytree(STUDY, copy, ignore=shutil.ignore_patterns("study.local.toml", "__pycache__"))
    study = studies.TinyStudy(copy, tmp_path, tmp_path / "state" / "ledger.sqlite3")
    done = subprocess.run(
        [*studies.PYTEST, "--study=pilot", f"--study-ledger={study.ledger}", str(copy)],
        cwd=tmp_path,
        env=studies.environment(PATH=str(Path(sys.executable).parent)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 4
    assert "required Claude Code 2.1.296: npm install" in done.stdout + done.stderr
    assert not study.ledger.exists()
