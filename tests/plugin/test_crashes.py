"""A process of a run that dies at any moment leaves a ledger that says so, and nothing that runs."""

from __future__ import annotations

import os
import signal
import time

import pytest
import sessions
from providers import Response, message, text, tool_use, tools
from sessions import slow

import studies

WORKER_ENDED = "its worker process ended"


def charges(study, attempt):
    """Return what was reserved for the calls of an attempt, and what they were charged."""
    mine = [record for record in study.records() if record.attempt == attempt]
    reserved = [record.body["usd"] for record in mine if record.kind == "reserve"]
    settled = [record.body for record in mine if record.kind == "settle"]
    return reserved, [one["charged_usd"] for one in settled], [one["measured"] for one in settled]


def kill_worker(study, session, attempt):
    session.remember()
    os.kill(sessions.maker(study, attempt), signal.SIGKILL)


def end_of(session, study):
    """Wait for the session's end; nothing of it may be left, open or running."""
    ended = session.wait()
    sessions.nothing_left(session)
    sessions.check_closed(study)
    assert "INTERNALERROR" not in ended.out
    assert "Traceback" not in ended.out + ended.err
    return ended


@pytest.mark.parametrize(
    ("workers", "target"),
    [
        (2, "t2:plain:1"),
        *(
            slow(workers, f"t{task}:{arm}:1")
            for workers in (1, 2, 3, 4)
            for task in (1, 2, 3)
            for arm in ("plain", "docs")
            if (workers, task, arm) != (2, 2, "plain")
        ),
    ],
)
def test_a_worker_killed_in_an_attempt_is_charged_in_full_and_stops_the_run(
    pytester, workers, target
):
    task, arm, _ = target.split(":")

    def target_sleeps(request, stop):
        if (request.task, request.arm) == (task, arm):
            stop.wait(30)

    with sessions.behaving(target_sleeps) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=3)
        with sessions.started_session(
            study, f"-n{workers}", "--junitxml=j.xml", "--json-report"
        ) as session:
            session.until(lambda: (task, arm) in provider.seen, "the request")
            kill_worker(study, session, target)
            ended = end_of(session, study)
    assert ended.status == 1
    assert provider.seen.count((task, arm)) == 1
    seen = sessions.observed(study)[target]
    assert (seen.status, seen.reason) == ("failed", WORKER_ENDED)
    reserved, charged, measured = charges(study, target)
    assert len(reserved) == 1
    assert (charged, measured) == (reserved, [False])
    stop = study.records("stop")[0]
    assert stop.attempt == target
    assert [one.attempt for one in study.records("start") if one.seq > stop.seq] == []
    assert f"the run stopped at {target} with failed ({WORKER_ENDED})" in ended.out
    statuses = sessions.statuses(study)
    for reports in (
        sessions.junit(pytester.path / "j.xml"),
        sessions.json_report(pytester.path / ".report.json"),
    ):
        assert {name: one[1]["status"] for name, one in reports.items()} == statuses
        crashed = reports[target][1]
        assert (crashed["charged_usd"], crashed["reason"]) == (reserved[0], WORKER_ENDED)
        assert (crashed["task"], crashed["scenario"]) == (task, arm)


@pytest.mark.slow
def test_a_worker_killed_in_setup_is_charged_nothing(pytester):
    with sessions.behaving(sessions.answers) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=2)
        sessions.slow_server(study, 2, "tools/list")
        with sessions.started_session(study, "-n1", "--junitxml=j.xml") as session:
            session.until(lambda: sessions.is_slow(study), "the server of the second attempt")
            kill_worker(study, session, "t1:plain:1")
            ended = end_of(session, study)
    assert ended.status == 1
    seen = sessions.observed(study)["t1:docs:1"]
    assert (seen.status, seen.reason, seen.charged_usd) == ("failed", WORKER_ENDED, 0)
    assert [record.attempt for record in study.records("start")] == ["t1:plain:1"]
    assert sessions.statuses(study)["t2:plain:1"] == "blocked"
    assert len(provider.received) == 1


@pytest.mark.slow
def test_a_worker_killed_in_teardown_keeps_what_was_observed_and_stops_the_run(pytester):
    with sessions.behaving(sessions.answers) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=2)
        sessions.slow_server(study, 2, "end")
        with sessions.started_session(study, "-n1", "--json-report") as session:
            session.until(lambda: sessions.is_slow(study), "the end of the second attempt's server")
            kill_worker(study, session, "t1:docs:1")
            ended = end_of(session, study)
    assert ended.status == 1
    statuses = sessions.statuses(study)
    assert list(statuses.values()) == ["completed", "completed", "blocked", "blocked"]
    reports = sessions.json_report(pytester.path / ".report.json")
    assert {name: one[1]["status"] for name, one in reports.items()} == statuses
    assert f"the run stopped at t1:docs:1 with {WORKER_ENDED}" in ended.out


def test_a_killed_session_stays_charged_and_the_next_one_says_so(pytester):
    turns = iter([Response(tools(tool_use("doc_search", query="cap")))])

    def second_turn_sleeps(request, stop):
        if request.arm == "docs" and not request.answered_tools:
            return next(turns)
        if request.arm == "docs":
            stop.wait(30)
        return None

    with sessions.behaving(second_turn_sleeps) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=1)
        with sessions.started_session(study) as session:
            session.until(
                lambda: len(provider.received) == 3, "the second call of the second attempt"
            )
            session.send(signal.SIGKILL)
            assert session.wait().status == -signal.SIGKILL
            sessions.nothing_left(session)
        assert any("docs_server.py" in line for line in session.commands)
        before = sessions.check_ledger(study)
        assert before[-1].kind == "reserve"
        assert before[-1].balance.reserved_usd > 0
        first = study.last_run().row.run
        provider.behave = sessions.answers
        ended = sessions.run(study)
    assert ended.status == 0
    assert f"run {first} was found open and its session dead: closed, charged in full" in ended.out
    after = sessions.check_closed(study)
    lost = next(one for one in after if one.kind == "observation" and one.attempt == "t1:docs:1")
    assert (lost.run, lost.body["status"], lost.body["reason"]) == (
        first,
        "failed",
        "the session ended",
    )
    # The turn that was settled is charged once, the open one in full, and both are the attempt's.
    mine = [one for one in after if (one.run, one.attempt) == (first, "t1:docs:1")]
    assert [one.kind for one in mine] == [
        *("start", "reserve", "settle", "reserve", "settle", "observation", "stop")
    ]
    assert [one.body["measured"] for one in mine if one.kind == "settle"] == [True, False]
    assert lost.balance.committed_usd == before[-1].balance.committed_usd


@pytest.mark.slow
def test_workers_end_with_their_killed_controller(pytester):
    with sessions.behaving(sessions.sleeps) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=3)
        with sessions.started_session(study, "-n2") as session:
            session.until(lambda: len(provider.received) == 2, "a request of each worker")
            session.send(signal.SIGKILL)
            session.wait()
            sessions.nothing_left(session)
        time.sleep(0.5)
        assert len(provider.received) == 2
        sessions.check_ledger(study)
        provider.behave = sessions.answers
        ended = sessions.run(study)
    assert ended.status == 0
    assert "its session dead: closed, charged in full" in ended.out
    sessions.check_closed(study)
    first = study.records("run")[0].run
    lost = [one for one in study.records("observation") if one.run == first]
    assert [one.attempt for one in lost] == ["t1:plain:1", "t2:docs:1"]
    assert {one.body["reason"] for one in lost} == {"the session ended"}


@pytest.mark.slow
def test_a_session_that_is_alive_is_not_closed_by_another(pytester):
    with sessions.behaving(sessions.sleeps) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=1)
        with sessions.started_session(study) as session:
            session.until(lambda: provider.received, "its request")
            provider.behave = sessions.answers
            ended = sessions.run(study)
            assert (ended.status, "session dead" in ended.out) == (0, False)
            first = study.records("run")[0].run
            assert first not in {one.run for one in study.records("close")}
            provider.stop.set()
            assert session.wait().status == 0
    sessions.check_closed(study)


# Nothing is started twice


@pytest.mark.parametrize("how", [[], slow(["-n2"])])
@pytest.mark.parametrize(
    ("options", "configured", "pattern"),
    [
        slow(["--reruns=2"], "", "--reruns: found with --study"),
        slow(["--force-reruns=2"], "", "--force-reruns: found with --study"),
        ([], "reruns = 2", "reruns: found in the ini file, required none with --study"),
        slow([], "addopts = --reruns=2", "--reruns: found with --study"),
    ],
)
def test_reruns_are_refused_wherever_they_are_asked_for(
    pytester, options, configured, pattern, how
):
    def fails(*_):
        return Response({"type": "error", "error": {"type": "overloaded_error"}}, 529)

    with sessions.behaving(fails) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=1)
        (pytester.path / "pytest.ini").write_text(f"[pytest]\n{configured}\n")
        ended = sessions.run(study, *options, *how)
    assert (ended.status, len(ended.error_lines)) == (4, 1)
    assert pattern in ended.err
    assert provider.received == []


RUNS_EVERYTHING_TWICE = """
import pytest
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    for _ in range(2):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        runtestprotocol(item, nextitem=nextitem)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""


@pytest.mark.parametrize("how", [[], slow(["-n2"])])
def test_an_attempt_that_a_plugin_starts_again_is_refused_by_the_ledger(pytester, how):
    with sessions.behaving(sessions.answers) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=1)
        (study.folder / "conftest.py").write_text(RUNS_EVERYTHING_TWICE)
        ended = sessions.run(study, str(study.folder), *how)
    assert ended.status == 1
    assert len(provider.received) == 2
    assert "t1:plain:1 was started before; an attempt runs at most once" in ended.out
    assert "Traceback" not in ended.out
    assert list(sessions.statuses(study).values()) == ["completed", "completed"]
    sessions.check_closed(study)


@pytest.mark.slow
def test_a_test_function_that_runs_its_attempt_twice_is_refused_by_the_ledger(pytester):
    with sessions.behaving(sessions.answers) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=1)
        (study.folder / "test_tiny.py").write_text(studies.TEST_FILE + "    study_attempt.run()\n")
        ended = sessions.run(study)
    assert ended.status == 1
    assert provider.seen == [("t1", "plain"), ("t1", "docs")]
    assert "t1:plain:1 was started before; an attempt runs at most once" in ended.out
    sessions.check_closed(study)


# Hostile words

HOSTILE = "\ud800\x1b]0;x\x07\x00<b>&amp;]]>\u202e\n\u2028 'quoted' \ufffe"


@pytest.mark.parametrize("how", [[], slow(["-n2"])])
def test_hostile_words_of_a_provider_end_in_plain_reports(pytester, how):
    def hostile(request, _stop):
        if request.task == "t1":
            return (
                None
                if request.answered_tools
                else Response(tools(tool_use(HOSTILE, query=HOSTILE)))
            )
        if request.arm == "docs":
            return Response(message(text(HOSTILE), stop_reason=HOSTILE))
        return Response(message(text("x"), model=HOSTILE))

    with sessions.behaving(hostile) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=2)
        ended = sessions.run(study, "--junitxml=j.xml", "--json-report", "-v", *how)
    assert ended.status == 1, ended.out
    assert "INTERNALERROR" not in ended.out
    assert "failed" in sessions.statuses(study).values()
    assert not set(HOSTILE) & {"\x1b", "\x00", "\u202e", "\u2028", "\ufffe"} & set(ended.out)
    for reports in (
        sessions.junit(pytester.path / "j.xml"),
        sessions.json_report(pytester.path / ".report.json"),
    ):
        assert {name: one[1]["status"] for name, one in reports.items()} == sessions.statuses(study)
    sessions.check_closed(study)


AUTHORS_TEST = """
import decimal, pathlib

def test_attempt(study_attempt, record_property):
    record_property("cost", decimal.Decimal("0.1"))
    record_property("place", pathlib.Path("/x"))
    record_property("\\ud800", "\\ud800")
    study_attempt.run()
    assert study_attempt.attempt.scenario == "plain", "\\ud800"
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [slow([]), ["-n2"]])
def test_what_an_author_records_is_made_plain(pytester, how):
    with sessions.behaving(sessions.answers) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=1)
        (study.folder / "test_tiny.py").write_text(AUTHORS_TEST)
        ended = sessions.run(study, "--junitxml=j.xml", "--json-report", *how)
    assert ended.status == 1
    assert "INTERNALERROR" not in ended.out
    assert set(sessions.statuses(study).values()) == {"completed"}, ended.out
    for reports in (
        sessions.junit(pytester.path / "j.xml"),
        sessions.json_report(pytester.path / ".report.json"),
    ):
        assert len(reports) == 2
        for _, properties in reports.values():
            assert (properties["cost"], properties["place"], properties["?"]) == ("0.1", "/x", "?")
            assert properties["status"] == "completed"
