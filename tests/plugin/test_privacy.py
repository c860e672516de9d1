"""Answers, keys and hostile text never reach a terminal, JUnit, JSON, a log or a traceback."""

from __future__ import annotations

import json
import os
import shutil
import stat
import xml.etree.ElementTree as ET

import pytest
from providers import Response, message, text, tool_use, tools

import studies

ANSWER = "ANSWER-7f3a: the cap is cumulative"
LOUD = ("-rA", "-vv", "--showlocals", "--tb=long", "--log-level=DEBUG", "-o", "log_cli=true")
HOSTILE = (
    "nul\0",
    "esc\x1b[31mred\x1b[0m",
    "bell\x07 vt\x0b ff\f",
    "c1\x85\x9b",
    "]]> & < > \" '",
    "nonchar\ufffe\uffff",
    "\U0001f9ea \U00020840",
    "tab\tnew\nline\rcr",
    "surrogate\ud800",
    "override\u202etxt",
    "a" * 100_000,
)


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url)


def everything_public(result, pytester):
    files = [
        path for path in (pytester.path / "j.xml", pytester.path / ".report.json") if path.exists()
    ]
    return result.stdout.str() + result.stderr.str() + "".join(path.read_text() for path in files)


def outcomes():
    answer = message(text(ANSWER))
    return {
        "completed": [answer],
        "http-error": [
            Response({"error": {"type": "overloaded_error", "message": ANSWER}}, status=529)
        ],
        "broken-reply": [Response(f'{{"content": "{ANSWER}"'.encode())],
        "unknown-stop": [message(text(ANSWER), stop_reason="pause_turn")],
        "other-model": [message(text(ANSWER), model="other")],
        "tool-error": [tools(tool_use(name="repo_read", path=ANSWER)), answer],
    }


@pytest.mark.parametrize("outcome", outcomes())
def test_answers_and_keys_stay_private_however_loud_pytest_is(
    study, run_pytest, pytester, provider, outcome
):
    provider.serve(
        [one if isinstance(one, Response) else Response(one) for one in outcomes()[outcome]]
    )
    result = run_pytest(
        "--study=pilot", *LOUD, "--junitxml=j.xml", "--json-report", *study.arguments
    )
    assert provider.received
    public = everything_public(result, pytester)
    for secret in ("ANSWER-7f3a", studies.KEY, "PROPOSITION-", provider.base_url):
        assert secret not in public


def test_the_key_reaches_the_provider_and_no_child(study, run_pytest, provider):
    (study.folder / "spy.py").write_text(
        "import os, pathlib, runpy, sys\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'environment.txt').write_text(repr(dict(os.environ)))\n"
        "sys.argv[0] = str(here / 'docs_server.py')\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    study.edit('"docs_server.py"', '"spy.py"')
    run_pytest("--study=pilot", *study.arguments)
    assert {one.headers["x-api-key"] for one in provider.received} == {studies.KEY}
    assert studies.KEY not in (study.folder / "environment.txt").read_text()


def test_a_server_that_asks_for_the_key_is_refused(study, run_pytest, provider):
    study.edit("[scenarios.plain]", f'pass_env = ["{studies.KEY_NAME}"]\n[scenarios.plain]')
    result = run_pytest("--study=pilot", *study.arguments)
    assert result.ret == 4
    assert f"found {studies.KEY_NAME}" in result.stderr.str()
    assert studies.KEY not in result.stderr.str()
    assert provider.received == []


@pytest.mark.slow
@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    "place",
    [
        "answer",
        "model",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("tool name", "stop reason", "error type")
        ),
    ],
)
def test_hostile_text_leaves_every_report_well_formed(study, pytester, provider, words, place):
    reply = {
        "answer": message(text(words)),
        "model": message(text("x"), model=words),
        "tool name": tools(tool_use(name=words, query="cap")),
        "stop reason": message(text("x"), stop_reason=words),
        "error type": Response(
            {"type": "error", "error": {"type": words, "message": words}}, status=400
        ),
    }[place]
    provider.serve([reply if isinstance(reply, Response) else Response(reply)])
    result = pytester.runpytest_inprocess(
        "--study=pilot", "-vv", "--junitxml=j.xml", "--json-report", *study.arguments
    )
    assert result.ret in {0, 1}
    assert len(list(ET.parse(pytester.path / "j.xml").iter("testcase"))) == 2
    json.loads((pytester.path / ".report.json").read_text(encoding="utf-8"))
    raw = result.stdout.str()
    for character in ("\0", "\x07", "\x0b", "\x9b", "\x85", "\u202e"):
        assert character not in raw
    assert "\x1b[31mred" not in raw
    assert max(len(line) for line in result.outlines) < 2_000


def test_hostile_titles_and_questions_are_shown_as_text(study, run_pytest):
    study.edit('title = "Tiny"', 'title = "\\u001b[31mred\\u0007"')
    result = run_pytest("--study=pilot", "-v", *study.arguments)
    assert result.ret == 0
    assert "\x1b[31mred" not in result.stdout.str()


def test_private_files_are_for_their_owner_alone(study, run_pytest, provider):
    run_pytest("--study=pilot", *study.arguments)
    directory = study.ledger.parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    kept = [path for path in directory.rglob("*") if path.is_file()]
    assert any(path.suffix == ".jsonl" for path in kept)
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert {
        stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_dir()
    } == {0o700}


def test_the_private_ledger_keeps_the_whole_answer(study, run_pytest, provider):
    long = "word " * 20_000
    provider.serve([Response(message(text(long)))])
    run_pytest("--study=pilot", *study.arguments)
    assert study.records("observation")[0].private["answer"] == long


BROKEN_EXPORT = """
import pytest
class Broken:
    def __init__(self, path):
        self.path = path
    def changes(self):
        secret = "LOCAL-SECRET"
        raise ZeroDivisionError(secret)
@pytest.fixture
def study_export(study_export):
    return Broken(study_export.path)
"""
BROKEN_TOOLS = """
import pytest
class Broken:
    @property
    def definitions(self):
        secret = "LOCAL-SECRET"
        raise ZeroDivisionError(secret)
@pytest.fixture
def study_servers(study_export):
    return Broken()
"""


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (BROKEN_EXPORT, "*the export was changed: it could not be checked"),
        (BROKEN_TOOLS, "internal error: ZeroDivisionError (see the private log)"),
    ],
)
def test_an_unexpected_exception_is_one_line_and_a_private_traceback(
    study, run_pytest, broken, said
):
    (study.folder / "conftest.py").write_text(broken)
    result = run_pytest("--study=pilot", *LOUD, *study.arguments)
    assert result.ret == 1
    assert "LOCAL-SECRET" not in result.stdout.str()
    result.stdout.fnmatch_lines([said])
    logs = list(study.ledger.parent.glob("run-*.log"))
    assert "LOCAL-SECRET" in logs[0].read_text()
    assert study.statuses() == ["invalid-setup", "blocked"]


SYSTEM = "SYSTEM-PROMPT-2b9c"


def test_a_timeout_from_outside_shows_no_local_and_stops_the_run(
    study, run_pytest, pytester, provider
):
    study.edit("[limits]", f'[prompt]\nsystem = "{SYSTEM}"\n[limits]')
    server = study.folder / "docs_server.py"
    server.write_text(server.read_text().replace("import json", "import json\nimport time", 1))
    (study.folder / "conftest.py").write_text(
        "import time, pytest\n"
        "class Slow:\n"
        "    def __init__(self, tools): self.tools = tools\n"
        "    definitions = property(lambda self: self.tools.definitions)\n"
        "    def server_of(self, name): return None\n"
        "    def call(self, name, arguments, *, timeout_s):\n"
        "        time.sleep(20)\n"
        "@pytest.fixture\n"
        "def study_servers(study_servers):\n"
        "    return Slow(study_servers)\n"
    )
    provider.serve([Response(tools(tool_use(query=ANSWER), text("ANSWER-7f3a")))])
    result = run_pytest(
        "--study=pilot", "--timeout=1", *LOUD, "--junitxml=j.xml", "--json-report", *study.arguments
    )
    assert result.ret == 1
    public = everything_public(result, pytester)
    assert SYSTEM not in public
    assert "ANSWER-7f3a" not in public
    assert study.statuses() == ["failed", "blocked"]
    first = study.last_run().lines[0].observation
    assert first.reason == "ended from outside: Failed (see the private log)"
    assert study.last_run().balance.reserved_usd == 0


def test_an_exception_in_teardown_is_one_line_too(study, run_pytest):
    (study.folder / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def study_servers(study_servers, study_export):\n"
        "    yield study_servers\n"
        "    def broken():\n"
        "        secret = 'LOCAL-SECRET'\n"
        "        raise ZeroDivisionError(secret)\n"
        "    study_export.remove = broken\n"
    )
    result = run_pytest("--study=pilot", *LOUD, *study.arguments)
    assert "LOCAL-SECRET" not in result.stdout.str()
    result.stdout.fnmatch_lines(["*internal error: ZeroDivisionError (see the private log)*"])
    assert result.ret == 1


def test_an_authors_own_traceback_stays_as_it_is(study, run_pytest):
    text = studies.TEST_FILE + "    mine = 41\n    assert mine == 42\n"
    (study.folder / "test_tiny.py").write_text(text)
    result = run_pytest("--study=pilot", "--showlocals", *study.arguments)
    result.stdout.fnmatch_lines(["E       assert 41 == 42", "mine       = 41"])


def test_the_models_own_tool_names_are_not_public(study, run_pytest, pytester, provider):
    provider.serve(
        [Response(tools(tool_use(name="ANSWER-7f3a", query="cap"))), Response(message(text("x")))]
    )
    run_pytest("--study=pilot", *study.arguments)
    first = study.last_run().lines[0].observation
    assert first.tool_calls_by_name == {"(unknown)": 1}
    assert "ANSWER-7f3a" not in repr([record.body for record in study.records()])


def test_no_session_secrets_are_written_whatever_the_environment_asks(tmp_path, monkeypatch):
    from pytest_studyminimal.transports.messages import MessagesApi

    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    api = MessagesApi(base_url="https://provider.invalid", key="k")
    api.prepare()
    assert api._tls.keylog_filename is None
    assert not (tmp_path / "keys").exists()


def test_no_git_child_gets_the_key(study, run_pytest, pytester, monkeypatch):
    studies.git(pytester.path, "init", "-q", ".")
    trap = pytester.path / "bin"
    trap.mkdir()
    real = shutil.which("git")
    (trap / "git").write_text(f'#!/bin/sh\nenv >> {pytester.path}/environments\nexec {real} "$@"\n')
    (trap / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{trap}:{os.environ['PATH']}")
    assert run_pytest("--study=pilot", *study.arguments).ret == 0
    seen = (pytester.path / "environments").read_text()
    assert "PATH=" in seen
    assert studies.KEY not in seen


def test_a_ledger_directory_that_others_can_write_is_refused(study, run_pytest, pytester):
    for mode in (0o777, 0o1777, 0o770):
        place = pytester.path / f"shared-{mode:o}"
        place.mkdir()
        place.chmod(mode)
        result = run_pytest(
            "--study=pilot", study.arguments[0], f"--study-ledger={place}/l.sqlite3"
        )
        assert result.ret == 4
        result.stderr.fnmatch_lines(
            [f"ERROR: {place}: found a directory of mode *that others can write*"]
        )
        assert list(place.iterdir()) == []


def test_somebodys_notes_are_not_touched_when_named_as_a_ledger(study, run_pytest, pytester):
    place = pytester.path / "mine"
    place.mkdir(mode=0o755)
    (place / "notes.txt").write_text("milk")
    (place / "notes.txt").chmod(0o644)
    result = run_pytest("--study=pilot", study.arguments[0], f"--study-ledger={place}/notes.txt")
    assert result.ret == 4
    result.stderr.fnmatch_lines(
        ["ERROR: */notes.txt: found another file, required a ledger or a new name"]
    )
    assert stat.S_IMODE((place / "notes.txt").stat().st_mode) == 0o644
    assert [path.name for path in place.iterdir()] == ["notes.txt"]
