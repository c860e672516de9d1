"""The real Claude Code, at the pinned build, against a local provider: what reached the wire."""

from __future__ import annotations

import json
import signal
from decimal import Decimal

import pytest
import sessions
from installs import agents
from sse import HANGS, calls, fails, says, streaming

import studies

pytestmark = [pytest.mark.npm, pytest.mark.slow]

ENV = 'env = ["ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"]'
ANSWER = says("The cap is cumulative: docs/budget.md:3.")
FILES = {
    **studies.FILES,
    "CLAUDE.md": "MARK-OF-THE-CORPUS\n",
    "AGENTS.md": "MARK-OF-THE-AGENTS\n",
}
SERVER = ("{python}", "{study}/docs_server.py", "{export}")
TOKEN = "tok-of-nobody-0123456789"


@pytest.fixture(scope="session")
def claude():
    return agents() / "claude"


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    (folder / ".claude").mkdir(parents=True)
    (folder / ".claude" / "CLAUDE.md").write_text("MARK-OF-THE-USER\n")
    return folder


@pytest.fixture
def study(tmp_path):
    one = studies.make_study(
        tmp_path / "study", agent=f"{ENV}\n", files=FILES, server=SERVER, limits="deadline_s = 60"
    )
    one.edit('attempt_usd = "0.50"', 'attempt_usd = "0.10"')
    return one


def variables(provider, home):
    return {
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": provider.base_url,
        "ANTHROPIC_AUTH_TOKEN": TOKEN,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def run(study, claude, provider, home, *arguments):
    option = f"--study-agent=claude-code={claude}"
    return sessions.run(study, option, *arguments, **variables(provider, home))


def observed(study):
    return [record.body for record in study.records("observation")]


def names(request):
    return sorted(tool["name"] for tool in request["tools"])


def comparable(request, cwd):
    """A request without what must differ between any two processes, and without its tools."""
    kept = {name: value for name, value in request.items() if name not in {"tools", "metadata"}}
    return json.dumps(kept, sort_keys=True).replace(cwd, "CWD")


def test_both_arms_complete_and_differ_in_nothing_but_their_tools(study, claude, home):
    docs = ("mcp__docs__doc_search", {"query": "budget"})
    with streaming(
        calls("Grep", pattern="cap"), calls("Read", file_path="docs/budget.md"), ANSWER
    ) as one:
        ended = run(study, claude, one, home)

    assert ended.status == 0, ended.out + ended.err
    plain, server = observed(study)
    for seen in (plain, server):
        assert seen["status"] == "completed"
        assert seen["agent"]["version"] == "2.1.296"
        assert seen["charged_usd"] == seen["reported_cost_usd"] == seen["computed_cost_usd"]
        assert seen["tool_calls_by_name"] == {"Grep": 1, "Read": 1}
        assert seen["agent"]["api_retries"] == 0
    first, *_ = [request for request in one.received if docs[0] not in names(request)]
    other, *_ = [request for request in one.received if docs[0] in names(request)]
    assert names(first) == ["Glob", "Grep", "Read"]
    assert set(names(other)) - set(names(first)) == {
        *("mcp__docs__doc_get", "mcp__docs__doc_search", "mcp__docs__handoff_resolve"),
    }
    folders = [stream_init(study, arm)["cwd"] for arm in ("plain", "docs")]
    assert comparable(first, folders[0]) == comparable(other, folders[1])
    everything = json.dumps(one.received)
    assert "MARK-OF-THE" not in everything
    assert TOKEN not in json.dumps(observed(study)) + ended.out


def stream_init(study, arm):
    run_id = study.records("run")[0].run
    stream = study.ledger.parent / "streams" / run_id / f"alpha.{arm}.1.jsonl"
    lines = [json.loads(line) for line in stream.read_text().splitlines()]
    return next(line for line in lines if line.get("subtype") == "init")


def test_the_agent_reaches_the_server_through_the_tools_it_was_offered(study, claude, home):
    script = (calls("mcp__docs__doc_search", query="budget"), ANSWER)
    with streaming(*script) as provider:
        ended = run(study, claude, provider, home, "-k", "docs")

    assert ended.status == 0, ended.out + ended.err
    (seen,) = observed(study)
    assert seen["tool_calls_by_name"] == {"mcp__docs__doc_search": 1}
    assert seen["tool_errors_by_name"] == {}
    results = [request for request in provider.received if len(request["messages"]) > 1]
    assert "docs/budget.md" in json.dumps(results[-1]["messages"][1:])
    assert "MCP check, docs: docs connected in 1 of 1 attempts; 1 of 3 MCP tools used" in ended.out


def test_a_server_in_another_folder_gets_its_own_environment_and_nothing_of_the_agents(
    study, claude, home, tmp_path
):
    report = tmp_path / "server.json"
    study.folder.joinpath("reporting.py").write_text(
        "import json, os, sys\nfrom pathlib import Path\n"
        f"Path({str(report)!r}).write_text(json.dumps([os.getcwd(), dict(os.environ)]))\n"
        "import docs_server\nsys.exit(docs_server.main(sys.argv[1:]))\n"
    )
    study.edit(
        '["{python}", "{study}/docs_server.py", "{export}"]',
        '["{python}", "reporting.py", "{export}"]',
    )
    study.edit("ready = { tool", 'env = { DOCS_MODE = "quiet" }\nready = { tool')
    with streaming(calls("mcp__docs__doc_search", query="budget"), ANSWER) as provider:
        ended = run(study, claude, provider, home, "-k", "docs")

    assert ended.status == 0, ended.out + ended.err
    cwd, env = json.loads(report.read_text())
    assert cwd == str(study.folder)
    assert env["DOCS_MODE"] == "quiet"
    assert TOKEN not in env.values()
    assert not any(name.startswith(("CLAUDE", "ANTHROPIC")) for name in env)
    assert observed(study)[0]["tool_errors_by_name"] == {}


def test_a_read_outside_the_export_is_refused_recorded_and_no_failure(study, claude, home):
    with streaming(calls("Read", file_path="/etc/hostname"), ANSWER) as provider:
        ended = run(study, claude, provider, home)

    assert ended.status == 0, ended.out + ended.err
    for seen in observed(study):
        assert seen["agent"]["denials"] == ["Read"]
        assert seen["tool_errors_by_name"] == {"Read": 1}


def test_a_tool_that_was_not_offered_makes_the_attempt_invalid(study, claude, home):
    with streaming(calls("Bash", command="id"), ANSWER) as provider:
        ended = run(study, claude, provider, home)

    assert ended.status == 1
    assert observed(study)[0]["reason"] == "called Bash, which was not offered"


def test_the_budget_stops_the_agent_and_what_it_spent_is_charged(study, claude, home):
    dear = {**calls("Read", file_path="docs/budget.md"), "output_tokens": 250_000}
    with streaming(dear, ANSWER) as provider:
        ended = run(study, claude, provider, home)

    assert ended.status == 1
    (seen,) = observed(study)
    assert (seen["status"], seen["agent"]["subtype"]) == ("budget-exceeded", "error_max_budget_usd")
    assert Decimal(seen["charged_usd"]) == Decimal(seen["reported_cost_usd"]) > Decimal("0.10")
    assert len(provider.received) == 1


@pytest.mark.parametrize("status", [400, 404, 429, 529])
def test_an_error_of_the_api_fails_the_attempt_and_nothing_is_asked_twice(
    study, claude, home, status
):
    with streaming(fails(status)) as provider:
        ended = run(study, claude, provider, home)

    assert ended.status == 1
    (seen,) = observed(study)
    assert (seen["status"], seen["charged_usd"]) == ("failed", "0.1")
    assert seen["agent"]["api_error_status"] == status
    # A refused request costs nothing; after 400 and 404 the CLI asks for less, and again for less.
    asked = [json.dumps(request, sort_keys=True) for request in provider.received]
    assert len(set(asked)) == len(asked) == (1 if status in {429, 529} else len(asked)) <= 3
    assert study.statuses() == ["failed", "blocked"]


def test_a_server_that_fails_to_start_in_an_attempt_is_an_invalid_setup(study, claude, home):
    study.folder.joinpath("once.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        "mark = Path(__file__).with_suffix('.mark')\n"
        "if mark.exists():\n    sys.exit(3)\n"
        "mark.touch()\nimport docs_server\nsys.exit(docs_server.main(sys.argv[1:]))\n"
    )
    study.edit("{study}/docs_server.py", "{study}/once.py")
    with streaming(ANSWER) as provider:
        ended = run(study, claude, provider, home)

    assert ended.status == 1
    assert study.statuses() == ["completed", "invalid-setup"]
    assert observed(study)[1]["reason"] == "server docs is failed"


def test_another_pin_is_refused_before_any_money(study, claude, home):
    study.edit('version = "2.1.296"', 'version = "2.1.295"')
    with streaming(ANSWER) as provider:
        ended = run(study, claude, provider, home)

    assert ended.status == 4
    assert "found '2.1.296 (Claude Code)' from --version" in ended.out + ended.err
    assert provider.received == []


def test_a_missing_login_is_said_before_any_money(study, claude, home):
    study.edit(ENV, "")
    ended = sessions.run(study, f"--study-agent=claude-code={claude}", HOME=str(home))

    assert ended.status == 4
    assert "claude-code: found it not logged in" in ended.out + ended.err
    assert not study.ledger.exists()


@pytest.mark.parametrize("polite", [True, False])
def test_a_hang_is_ended_with_every_server_and_what_it_started(study, claude, home, polite):
    mark = f"stubborn-{polite}"
    stubborn = (
        "import signal, time; "
        + ("" if polite else "signal.signal(signal.SIGTERM, signal.SIG_IGN); ")
        + "time.sleep(600)"
    )
    study.folder.joinpath("parent.py").write_text(
        "import subprocess, sys\nimport docs_server\n"
        f"subprocess.Popen([sys.executable, '-c', {stubborn!r}, {mark!r}], start_new_session=True)\n"
        "sys.exit(docs_server.main(sys.argv[1:]))\n"
    )
    study.edit("{study}/docs_server.py", "{study}/parent.py")
    study.edit("deadline_s = 60", "deadline_s = 6")
    with streaming(HANGS) as provider:
        ended = run(study, claude, provider, home, "-k", "docs")

    assert ended.status == 1, ended.out
    (seen,) = observed(study)
    assert (seen["status"], seen["charged_usd"]) == ("timed-out", "0.1")
    assert not studies.python_processes(mark)
    assert not studies.python_processes(str(claude.resolve()))


def test_an_interrupt_ends_the_agent_and_its_server(study, claude, home):
    with (
        streaming(HANGS) as provider,
        sessions.started_session(
            study,
            f"--study-agent=claude-code={claude}",
            "-k",
            "docs",
            **variables(provider, home),
        ) as session,
    ):
        session.until(lambda: provider.received)
        session.send(signal.SIGINT)
        ended = session.wait()
        sessions.nothing_left(session)

    assert ended.status == 2
    assert observed(study)[0]["reason"] == "the session was interrupted"


def test_a_dress_rehearsal_runs_the_real_agent_for_nothing_and_says_what_it_proved(
    study, claude, tmp_path
):
    option = f"--study-agent=claude-code={claude}"
    ended = sessions.run(study, option, "--study-rehearse", HOME=str(tmp_path))

    assert ended.status == 0, ended.out + ended.err
    row = study.records("run")[0]
    assert row.body["rehearsal"] is True
    assert row.account == f"rehearsal:{row.run}"
    for seen in observed(study):
        assert seen["rehearsal"] is True
        assert seen["tool_calls"] >= 2
        assert seen["answer_complete"] is True
        reported, computed = seen["reported_cost_usd"], seen["computed_cost_usd"]
        assert round(Decimal(reported), 6) == round(Decimal(computed), 6)
    assert (
        "proven: versions yes · tool sets yes · servers yes · pins yes ·"
        " reachability 1 of 1 sources · costs agree yes"
    ) in ended.out
    assert "rehearsal, not evidence" in ended.out
    assert any("mcp__docs" in name for name in observed(study)[1]["tool_calls_by_name"])


def test_the_real_agent_judges_blind_without_a_tool_in_an_empty_folder(study, claude, tmp_path):
    study.add('\n[adjudicator]\nconnection = "cli"\nattempt_usd = "0.10"\n')
    test = study.folder / "test_tiny.py"
    test.write_text(
        test.read_text()
        + "\ndef test_adjudication(study_adjudication):\n    study_adjudication.run()\n"
    )
    options = (f"--study-agent=claude-code={claude}", "--study-rehearse")
    assert sessions.run(study, *options, HOME=str(tmp_path)).status == 0
    run = study.records("run")[0].run

    ended = sessions.run(
        study, *options, f"--study-run={run}", phase="adjudicate", HOME=str(tmp_path)
    )

    assert ended.status == 0, ended.out + ended.err
    assert [one.body["packet"] for one in study.records("verdict")] == ["p01", "p02"]
    for record in study.records("verdict"):
        assert record.body["transport"] == "claude-code"
        assert record.body["rehearsal"] is True
    for seen in observed(study)[2:]:
        assert (seen["status"], seen["offered_tools"], seen["tool_calls"]) == ("completed", [], 0)
        assert seen["agent"]["servers"] == []


def test_the_doctor_knows_the_real_agent(study, claude, home):
    arguments = (
        "doctor",
        study.folder,
        f"--study-root=corpus={study.checkout}",
        f"--study-agent=claude-code={claude}",
    )
    with streaming(ANSWER) as provider:
        ready = sessions.studyminimal(*arguments, **variables(provider, home))
        missing = sessions.studyminimal(*arguments, HOME=str(home))

    assert ready.returncode == 0, ready.stdout + ready.stderr
    assert "claude-code 2.1.296 with claude-haiku-5-5" in ready.stdout
    assert "logged in" in ready.stdout
    assert "offers 3 of 3 tools, reaches 1 of 1 sources" in ready.stdout
    assert missing.returncode == 1
    assert "missing  connection cli: ANTHROPIC_BASE_URL: found nothing" in missing.stdout
    assert provider.received == []


@pytest.mark.parametrize(
    "question", ["-v what does this do?", "--model of a budget?", "two\nlines"]
)
def test_the_real_parser_takes_a_prompt_as_it_is(study, claude, home, question):
    study.edit('"What does the alpha budget reserve? Cite paths and lines."', json.dumps(question))
    with streaming(ANSWER) as provider:
        ended = run(study, claude, provider, home, "-k", "plain")

    assert ended.status == 0, ended.out + ended.err
    assert json.dumps(question)[1:-1] in json.dumps(provider.received[0]["messages"])
