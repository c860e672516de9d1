"""An agent CLI as a process: what it gets, how it may end, and that nothing of it is left."""

from __future__ import annotations

import json
import signal
import stat
import time
from dataclasses import dataclass
from decimal import Decimal

import pytest
import sessions
from played import StandIn, make_standin, make_study
from sessions import slow

import studies
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.workspace.places import INHERITED

HOSTILE = {
    "CLAUDECODE": "1",
    "CLAUDE_CODE_ENTRYPOINT": "cli",
    "CLAUDE_CONFIG_DIR": "/nowhere",
    "ANTHROPIC_API_KEY": "sk-hostile-0123456789",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
    "OPENAI_API_KEY": "sk-hostile-9876543210",
    "GITHUB_TOKEN": "ghp-hostile",
    "NODE_OPTIONS": "--hostile",
    "GIT_DIR": "/nowhere",
}
OURS = {"CLAUDE_CODE_MAX_RETRIES", "DISABLE_AUTOUPDATER", "STUDYMINIMAL_CHILD"}
# Added by a wrapper of this machine's own Python, not by us: the stand-in is a script.
WRAPPERS = ("PYENV_", "_PYENV", "PWD", "SHLVL", "_", "OLDPWD", "LC_CTYPE")


def option(argv, name):
    return argv[argv.index(name) + 1]


def observations(study):
    return [record.body for record in study.records("observation")]


@dataclass(frozen=True)
class Completed:
    """A clean session of both arms: its study, the program that played the agent, its output."""

    study: studies.TinyStudy
    standin: StandIn
    out: str


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    base = tmp_path_factory.mktemp("completed")
    study, standin = make_study(base), make_standin(base)
    ended = sessions.run(study, standin.option)
    assert ended.status == 0, ended.out + ended.err
    return Completed(study, standin, ended.out)


def test_both_arms_complete_and_all_of_the_metrics_are_in_the_ledger(completed):
    row = completed.study.records("run")[0].body
    first, second = observations(completed.study)

    assert row["agent"]["version"] == row["agent"]["expected_version"] == "2.1.296"
    assert len(row["agent"]["sha256"]) == 64
    assert row["agent"]["denied_tools"] == []
    assert "larger of reported and computed" in row["agent"]["cost_rule"]
    assert row["prices"]["tiers"][0]["cache_write_1h"] == "0.2"
    assert first["status"] == second["status"] == "completed"
    assert first["expected_version"] == first["agent"]["version"] == "2.1.296"
    assert first["attempt_budget_usd"] == "0.1"
    assert first["charged_usd"] == first["reported_cost_usd"] == first["computed_cost_usd"]
    assert first["charged_usd"] == "0.000962"
    assert first["cost_basis"] == "base, largest request"
    assert first["tool_calls_by_name"] == {"Grep": 1}
    assert first["agent"]["tools"] == ["Glob", "Grep", "Read"]
    assert second["agent"]["servers"] == [{"name": "docs", "status": "connected"}]
    assert first["agent"]["num_turns"] == first["turns"] == 2
    assert first["agent"]["duration_ms"] == 40
    assert 0 < first["agent"]["startup_s"] <= first["wall_s"]
    reach = completed.study.records("run")[0].body["servers"]["corpus"]["docs"]["reachable"]
    assert reach == {"alpha": ["yes"]}


def test_the_version_is_asked_once_for_a_run(completed):
    assert completed.standin.versions_asked == 1


def test_the_summary_has_the_build_both_costs_and_the_check_of_the_servers(completed):
    assert "claude-code 2.1.296, pinned 2.1.296, sha256 " in completed.out
    assert (
        "alpha:plain:1: reported $0.000962, computed $0.000962, in 1,200, cache read 5,200,"
        " cache write 3,100, out 340, start "
    ) in completed.out
    assert "MCP check, plain: no server in 1 of 1 attempts" in completed.out
    assert (
        "MCP check, docs: docs connected in 1 of 1 attempts; 0 of 3 MCP tools used" in completed.out
    )
    assert "(larger of reported and list price)" in completed.out


def test_the_arms_differ_in_their_servers_and_in_nothing_else(completed):
    plain, docs = (start["argv"] for start in completed.standin.starts)

    differing = [(one, other) for one, other in zip(plain, docs, strict=True) if one != other]
    assert differing == [
        (option(plain, "--allowedTools"), option(docs, "--allowedTools")),
        (option(plain, "--mcp-config"), option(docs, "--mcp-config")),
    ]
    assert option(plain, "--allowedTools") == "Read,Grep,Glob"
    assert option(docs, "--allowedTools") == (
        "Read,Grep,Glob,mcp__docs__doc_search,mcp__docs__doc_get,mcp__docs__handoff_resolve"
    )
    assert json.loads(option(plain, "--mcp-config")) == {"mcpServers": {}}
    assert list(json.loads(option(docs, "--mcp-config"))["mcpServers"]) == ["docs"]


def test_the_arguments_stand_in_the_order_of_the_protocol(completed):
    flags = [word for word in completed.standin.starts[0]["argv"] if word.startswith("-")]

    assert flags == [
        *("-p", "--model", "--output-format", "--verbose", "--no-session-persistence"),
        *("--max-budget-usd", "--restricted", "--disable-slash-commands", "--permission-mode"),
        *("--permission-prompts", "--tools", "--allowedTools", "--disallowedTools"),
        *("--mcp-config", "--strict-mcp-config"),
    ]
    assert option(completed.standin.starts[0]["argv"], "--disallowedTools") == (
        "Bash,Edit,MultiEdit,Write,NotebookEdit,WebFetch,WebSearch,Task,Agent"
    )


def test_every_attempt_works_in_its_own_read_only_export(completed):
    folders = [start["cwd"] for start in completed.standin.starts]

    assert len(set(folders)) == 2
    assert {start["mode"] for start in completed.standin.starts} == {"0555"}
    assert not any(start["writable"] for start in completed.standin.starts)


def test_streams_are_kept_privately_and_judged_again_alike(completed, tmp_path):
    run = completed.study.records("run")[0].run
    folder = completed.study.ledger.parent / "streams" / run
    before = completed.study.ledger.read_bytes()

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert {file.name for file in files} == {
        *("alpha.plain.1.jsonl", "alpha.plain.1.end.json"),
        *("alpha.docs.1.jsonl", "alpha.docs.1.end.json"),
    }
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    done = sessions.studyminimal("judge", "--ledger", completed.study.ledger, "--run", run)
    assert done.returncode == 0, done.stderr
    assert "2 judged, 0 differ" in done.stdout
    assert completed.study.ledger.read_bytes() == before


def test_an_older_verdict_that_differs_is_said(completed):
    run = completed.study.records("run")[0].run
    stream = completed.study.ledger.parent / "streams" / run / "alpha.docs.1.jsonl"
    before = stream.read_text()
    stream.write_text(before.replace('"connected"', '"pending"'))

    done = sessions.studyminimal(
        "judge", "--ledger", completed.study.ledger, "--run", run, "--json"
    )
    stream.write_text(before)

    document = json.loads(done.stdout)
    first, second = document["attempts"]
    assert first["differs"] == []
    assert second["then"]["status"] == "completed"
    assert second["now"]["status"] == "invalid-setup"
    assert second["differs"][0] == "status: was completed, is invalid-setup"
    assert second["differs"][-1] == "charged_usd: was 0.000962, is 0.1"


def test_show_tells_calls_without_words_and_words_only_where_asked(completed):
    run = completed.study.records("run")[0].run

    plain = sessions.studyminimal("show", f"{run}:alpha:docs:1", "--ledger", completed.study.ledger)
    private = sessions.studyminimal(
        "show", f"{run}:alpha:docs:1", "--ledger", completed.study.ledger, "--private"
    )

    assert "call Grep" in plain.stdout
    assert "cumulative" not in plain.stdout
    assert "The cap is cumulative: docs/budget.md:3." in private.stdout


@pytest.mark.parametrize("arguments", [(), slow(("-s",)), slow(("-n", "1"))])
def test_a_child_gets_an_empty_input_and_the_listed_environment_alone(study, standin, arguments):
    if "-n" in arguments:
        study.edit("parallel = false", "parallel = true")

    ended = sessions.run(study, standin.option, *arguments, **HOSTILE)

    assert ended.status == 0, ended.out + ended.err
    for start in standin.starts:
        names = {name for name in start["env"] if not name.startswith(WRAPPERS)}
        assert names - set(INHERITED) == OURS
        assert start["env"]["CLAUDE_CODE_MAX_RETRIES"] == "0"
        assert start["env"]["DISABLE_AUTOUPDATER"] == "1"
        assert not any(
            value in start["env"].values() for value in HOSTILE.values() if len(value) > 1
        )


@pytest.mark.parametrize(
    "question",
    [
        "-v what does this flag do?",
        slow("--model of a budget?"),
        slow("two\nlines, --tools Bash and 'quotes' \"$HOME\" `id`"),
        slow("-"),
        slow("--"),
    ],
)
def test_a_prompt_is_one_word_whatever_it_looks_like(study, standin, question):
    study.edit(
        'question = "What does the alpha budget reserve? Cite paths and lines."',
        f"question = {json.dumps(question)}",
    )

    ended = sessions.run(study, standin.option)

    assert ended.status == 0, ended.out + ended.err
    assert [start["prompt"] for start in standin.starts] == [[question]] * 2
    assert option(standin.starts[0]["argv"], "--tools") == "Read,Grep,Glob"


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ({"exit": 1}, "failed", "ended by exit status 1"),
        slow({"dies": "SIGTERM"}, "failed", "ended by signal SIGTERM without a result"),
        slow({"dies": "SIGKILL"}, "failed", "ended by signal SIGKILL without a result"),
        slow({"init_version": "2.1.300"}, "invalid-setup", "the CLI said 2.1.300, required"),
        slow({"text": "Warning: a line\n"}, "invalid-setup", "line 2 is not a JSON object"),
        slow({"bytes": 5_000_000}, "failed", "its output passed the cap"),
        slow(
            {"result": {"subtype": "error_max_budget_usd", "total_cost_usd": 0.6}},
            "invalid-cost",
            "reported 0.6 USD and computed",
        ),
    ],
)
def test_an_attempt_that_did_not_complete_stops_the_run_and_is_charged(
    study, standin, how, status, reason
):
    standin.behaves(**how)

    ended = sessions.run(study, standin.option)

    assert ended.status == 1
    assert study.statuses() == [status, "blocked"]
    (seen,) = observations(study)
    assert seen["reason"].startswith(reason)
    assert Decimal(seen["charged_usd"]) == max(
        Decimal("0.1"), Decimal(str(how.get("result", {}).get("total_cost_usd", 0)))
    )
    assert len(standin.starts) == 1
    assert "Traceback" not in ended.out + ended.err


@pytest.mark.slow
def test_a_line_of_a_megabyte_and_a_half_is_read(study, standin):
    standin.behaves(bytes=1_500_000)

    assert sessions.run(study, standin.option).status == 0


@pytest.mark.parametrize("children", [slow([]), slow([False]), [True]])
def test_a_deadline_ends_the_process_and_all_that_it_started(study, standin, children):
    study.edit("deadline_s = 20", "deadline_s = 2")
    standin.behaves(hangs="before", ignores_term=True, children=children)

    began = time.monotonic()
    ended = sessions.run(study, standin.option)

    assert ended.status == 1
    assert time.monotonic() - began < sessions.at_most(15)
    (seen,) = observations(study)
    assert (seen["status"], seen["charged_usd"]) == ("timed-out", "0.1")
    assert seen["usage_complete"] is False
    assert seen["usage"]["input_tokens"] == 600
    assert not studies.python_processes(str(standin.folder))


@pytest.mark.slow
def test_a_child_that_holds_the_output_does_not_keep_a_finished_attempt(study, standin):
    standin.behaves(children=[False, True])

    began = time.monotonic()
    ended = sessions.run(study, standin.option)

    assert ended.status == 0, ended.out
    assert time.monotonic() - began < sessions.at_most(15)
    assert not studies.python_processes(str(standin.folder))


@pytest.mark.slow
def test_a_process_that_stays_after_its_result_has_ten_seconds(study, standin):
    standin.behaves(hangs="after")

    ended = sessions.run(study, standin.option)

    assert ended.status == 1
    (seen,) = observations(study)
    assert (seen["status"], seen["reason"]) == ("failed", "the CLI did not exit after its result")
    assert (seen["charged_usd"], seen["reported_cost_usd"]) == ("0.1", "0.000962")
    assert 10 <= seen["wall_s"] < 20


@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM)])
def test_an_interrupt_records_the_attempt_and_ends_its_process(study, standin, number):
    standin.behaves(hangs="before", children=[True])

    with sessions.started_session(study, standin.option) as session:
        session.until((standin.folder / "half").exists)
        session.send(number)
        ended = session.wait()
        sessions.nothing_left(session)

    assert ended.status == 2
    (seen,) = observations(study)
    assert (seen["status"], seen["reason"]) == ("failed", "the session was interrupted")
    assert seen["charged_usd"] == "0.1"
    assert not studies.python_processes(str(standin.folder))


@pytest.mark.slow
def test_after_a_kill_nothing_is_left_and_the_reservation_stays_charged(study, standin):
    standin.behaves(hangs="before", children=[False, True])
    with sessions.started_session(study, standin.option) as session:
        session.until((standin.folder / "half").exists)
        session.send(signal.SIGKILL)
        session.wait()
        sessions.nothing_left(session, 5.0)
    assert not studies.python_processes(str(standin.folder))
    (stream,) = (study.ledger.parent / "streams").rglob("*.jsonl")
    kept = [json.loads(line)["type"] for line in stream.read_text().splitlines()]
    assert kept == ["system", "assistant", "user"]
    assert stat.S_IMODE(stream.stat().st_mode) == 0o600
    standin.behaves()

    ended = sessions.run(study, standin.option)

    assert ended.status == 0, ended.out
    assert "found open and its session dead" in ended.out
    with Ledger.read(study.ledger) as ledger:
        assert ledger.balance("tiny").committed_usd == Decimal("0.101924")


@pytest.mark.parametrize(
    "version",
    [
        slow("2.1.300 (Claude Code)"),
        "2.1.2960 (Claude Code)",
        slow("2.1.296-beta"),
        slow("v2.1.296"),
        slow(""),
    ],
)
def test_another_version_is_refused_before_any_money(study, standin, version):
    standin.behaves(versions=[version])

    ended = sessions.run(study, standin.option)

    assert ended.status == 4
    told = ended.out + ended.err
    assert "from --version" in told
    assert "required Claude Code 2.1.296: npm install" in told
    assert standin.starts == []
    assert not study.ledger.exists()


@pytest.mark.slow
def test_a_program_that_is_not_there_is_one_line(study, tmp_path):
    ended = sessions.run(study, f"--study-agent=claude-code={tmp_path / 'none'}")

    assert ended.status == 4
    assert "found no program, required Claude Code 2.1.296" in ended.out + ended.err


@pytest.mark.parametrize(
    "text", [slow("claude-code"), "codex9=/x", slow("=x"), slow("claude-code=")]
)
def test_an_option_that_names_no_program_is_refused(study, text):
    ended = sessions.run(study, f"--study-agent={text}")

    assert ended.status == 4
    assert "required TRANSPORT=PATH with TRANSPORT one of claude-code" in ended.out + ended.err


def test_a_named_variable_reaches_the_agent_and_its_value_nothing_that_is_kept(tmp_path, standin):
    secret = "tok-0123456789-secret"
    study = studies.make_study(tmp_path / "named", agent='env = ["MY_AGENT_TOKEN"]\n')
    standin.behaves(
        answer=f"The token is {secret}.",
        stderr=f"{secret}\n",
        lines=[{"type": f"kind-{secret}"}],
    )
    report = tmp_path / "junit.xml"

    ended = sessions.run(study, standin.option, f"--junitxml={report}", MY_AGENT_TOKEN=secret)

    assert ended.status == 0, ended.out
    assert standin.starts[0]["env"]["MY_AGENT_TOKEN"] == secret
    kept = b"".join(file.read_bytes() for file in study.ledger.parent.rglob("*") if file.is_file())
    streams = b"".join(
        file.read_bytes()
        for file in (study.ledger.parent / "streams").rglob("*.*")
        if file.is_file()
    )
    assert secret.encode() not in streams
    assert b"(hidden)" in streams
    assert secret not in ended.out + ended.err + report.read_text()
    assert kept.count(secret.encode()) == 0


@pytest.mark.slow
def test_a_budget_that_rounds_to_nothing_is_refused(study, standin):
    ended = sessions.run(study, standin.option, "--study-attempt-budget-usd=0.0000009")

    assert ended.status == 4
    assert (
        "attempt budget: found 0.0000009 USD, required at least 0.000001" in ended.out + ended.err
    )
    assert standin.starts == []


@pytest.mark.slow
def test_a_budget_is_told_to_the_agent_rounded_down(study, standin):
    assert sessions.run(study, standin.option, "--study-attempt-budget-usd=0.1234567").status == 0
    assert {option(start["argv"], "--max-budget-usd") for start in standin.starts} == {"0.123456"}


@pytest.mark.slow
def test_a_named_variable_that_is_not_set_is_refused(tmp_path, standin):
    study = studies.make_study(tmp_path / "named", agent='env = ["MY_AGENT_TOKEN"]\n')

    ended = sessions.run(study, standin.option)

    assert ended.status == 4
    assert "MY_AGENT_TOKEN: found nothing, required it to be set" in ended.out + ended.err


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        slow('env = ["ANTHROPIC_API_KEY"]', "an env without ANTHROPIC_API_KEY"),
        slow('key = "MY_KEY"', "no key with transport = 'claude-code'"),
        slow('base_url = "https://example.invalid"', "no base_url with transport"),
        ('temperature = "0"', "no temperature with transport"),
    ],
)
def test_a_connection_to_a_cli_takes_nothing_of_an_api(tmp_path, standin, lines, told):
    study = studies.make_study(tmp_path / "wrong", agent=f"{lines}\n")

    ended = sessions.run(study, standin.option)

    assert ended.status == 4
    assert told in ended.out + ended.err


@pytest.mark.slow
def test_an_overshoot_above_the_cap_is_recorded_in_full_and_no_run_follows(study, standin):
    counts = {
        "inputTokens": 0,
        "outputTokens": 2_400_000,
        "cacheReadInputTokens": 5200,
        "cacheCreationInputTokens": 0,
    }
    standin.behaves(
        exit=1,
        result={
            "subtype": "error_max_budget_usd",
            "is_error": True,
            "total_cost_usd": 1.3,
            "modelUsage": {"claude-haiku-5-5": counts},
            "usage": {"input_tokens": 0, "output_tokens": 2_400_000},
        },
    )

    with sessions.started_session(study, standin.option) as session:
        ended = session.wait()

    (seen,) = observations(study)
    assert (seen["status"], seen["charged_usd"]) == ("budget-exceeded", "1.3")
    assert seen["cumulative_cap_exceeded"] is True
    assert "THE CAP WAS EXCEEDED by what the provider charged" in ended.out
    standin.behaves()
    with sessions.started_session(study, standin.option) as session:
        again = session.wait()
    assert again.status == 4
    assert "budget: cap 1 USD, spent 1.3" in again.out + again.err
    assert len(standin.starts) == 1


@pytest.mark.slow
def test_a_cost_beyond_the_cap_of_the_output_is_still_charged_and_judged_again_alike(
    study, standin
):
    standin.behaves(bytes=5_000_000, result={"total_cost_usd": 0.6})

    assert sessions.run(study, standin.option).status == 1

    (seen,) = observations(study)
    assert (seen["status"], seen["charged_usd"], seen["reported_cost_usd"]) == (
        "failed",
        "0.6",
        "0.6",
    )
    run = study.records("run")[0].run
    done = sessions.studyminimal("judge", "--ledger", study.ledger, "--run", run)
    assert "1 judged, 0 differ" in done.stdout


def test_a_program_that_can_no_longer_be_started_keeps_its_reservation_charged(study, standin):
    standin.behaves(vanishes=True)

    ended = sessions.run(study, standin.option)

    assert ended.status == 1
    (seen,) = observations(study)
    assert (seen["status"], seen["charged_usd"]) == ("failed", "0.1")
    assert seen["reason"].startswith("the CLI could not be started: ")
    assert standin.starts == []
