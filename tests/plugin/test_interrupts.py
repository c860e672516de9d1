"""Ctrl-C and SIGTERM at any moment: status 2, soon, with everything recorded and nothing left running."""

from __future__ import annotations

import signal
import time

import pytest
import sessions
from providers import Response, tool_use, tools
from sessions import slow

import studies

INTERRUPTED = "the session was interrupted"
SOON_S = 5.0
BOTH = [
    pytest.param(signal.SIGINT, id="sigint"),
    slow(signal.SIGTERM, id="sigterm"),
]


@pytest.fixture
def provider():
    with sessions.behaving(sessions.answers) as one:
        yield one


@pytest.fixture
def study(pytester, provider):
    return sessions.make_study(pytester.path, provider, tasks=1)


def end_of(session, study, seconds=SOON_S):
    """Wait for the end of an interrupted session: status 2, soon, and nothing left running or open."""
    ended = session.wait()
    assert ended.status == 2, ended.out + ended.err
    assert ended.seconds < sessions.at_most(seconds)
    sessions.nothing_left(session)
    if study.ledger.exists():
        sessions.check_closed(study)
    assert "Traceback" not in ended.out + ended.err
    assert "INTERNALERROR" not in ended.out
    assert studies.KEY not in ended.out + ended.err
    return ended


def interrupted(
    study, number, condition, *, again_s=None, group=False, arguments=(), seconds=SOON_S
):
    """Start a session, send it a signal once the condition holds, and return how it ended."""
    with sessions.started_session(study, *arguments) as session:
        session.until(condition, "the moment of the interrupt")
        time.sleep(0.1)
        session.send(number, group=group)
        sent = session.sent
        if again_s is not None:
            time.sleep(again_s)
            session.send(number, group=group)
            session.sent = sent
        return end_of(session, study, seconds)


def goes_on(study, provider, attempts=2):
    """Check that the next session runs as if nothing had happened."""
    provider.behave = sessions.answers
    ended = sessions.run(study)
    assert ended.status == 0, ended.out + ended.err
    assert list(sessions.statuses(study).values()) == ["completed"] * attempts
    assert "session dead" not in ended.out
    sessions.check_closed(study)


@pytest.mark.slow
@pytest.mark.parametrize("number", BOTH)
def test_in_preflight_nothing_was_opened(study, provider, number):
    sessions.slow_server(study, 1, "tools/list")
    ended = interrupted(study, number, lambda: sessions.is_slow(study))
    assert not study.ledger.exists() or study.records("run") == []
    assert provider.received == []
    assert "KeyboardInterrupt" in ended.out
    goes_on(study, provider)


@pytest.mark.slow
@pytest.mark.parametrize("number", BOTH)
def test_in_setup_the_attempt_was_not_started(study, provider, number):
    sessions.slow_server(study, 2, "tools/list")
    ended = interrupted(study, number, lambda: sessions.is_slow(study))
    assert sessions.statuses(study) == {"t1:plain:1": "completed", "t1:docs:1": "blocked"}
    assert [record.attempt for record in study.records("start")] == ["t1:plain:1"]
    assert study.last_run().close.body["reason"] == INTERRUPTED
    assert f"the run ended early ({INTERRUPTED}): 1 attempt not reached" in ended.out
    assert list(study.folder.parents[1].glob("session-*/studyminimal-export-*")) == []


@pytest.mark.parametrize("number", BOTH)
def test_in_a_paid_call_the_attempt_is_failed_and_charged_in_full(study, provider, number):
    provider.behave = sessions.sleeps
    ended = interrupted(study, number, lambda: provider.received)
    seen = sessions.observed(study)["t1:plain:1"]
    assert (seen.status, seen.reason, seen.usage_complete) == ("failed", INTERRUPTED, False)
    mine = [record for record in study.records() if record.attempt == "t1:plain:1"]
    assert [one.kind for one in mine] == ["start", "reserve", "settle", "observation", "stop"]
    assert mine[2].body == {
        "charged_usd": mine[1].body["usd"],
        "measured": False,
        "reservation": mine[1].seq,
    }
    assert sessions.statuses(study)["t1:docs:1"] == "blocked"
    assert "== study tiny · pilot ==" in ended.out
    assert f"the run stopped at t1:plain:1 with failed ({INTERRUPTED})" in ended.out
    goes_on(study, provider)


@pytest.mark.slow
@pytest.mark.parametrize("number", BOTH)
def test_in_a_tool_call_what_was_measured_stays_measured(study, provider, number):
    sessions.slow_server(study, 2, "tools/call")
    provider.behave = lambda request, _: (
        Response(tools(tool_use("doc_search", query="cap"))) if request.arm == "docs" else None
    )
    interrupted(study, number, lambda: sessions.is_slow(study))
    seen = sessions.observed(study)["t1:docs:1"]
    assert (seen.status, seen.reason, seen.requests) == ("failed", INTERRUPTED, 1)
    assert [one.body["measured"] for one in study.records("settle")] == [True, True]
    assert len(provider.received) == 2


@pytest.mark.parametrize("number", BOTH)
@pytest.mark.slow
def test_in_teardown_the_attempt_stays_completed_and_reported(study, provider, pytester, number):
    sessions.slow_server(study, 2, "end")
    study.edit("tasks = 1\nrepetitions = 1", "tasks = 1\nrepetitions = 2")
    study.edit("repetitions = 1\nparallel", "repetitions = 2\nparallel")
    ended = interrupted(
        study,
        number,
        lambda: sessions.is_slow(study),
        arguments=["--json-report", "--junitxml=j.xml"],
    )
    assert list(sessions.statuses(study).values()) == [
        "completed",
        "completed",
        "blocked",
        "blocked",
    ]
    assert f"the run ended early ({INTERRUPTED}): 2 attempts not reached" in ended.out
    assert list(study.folder.parents[1].glob("session-*/studyminimal-export-*")) == []
    for reports in (
        sessions.junit(pytester.path / "j.xml"),
        sessions.json_report(pytester.path / ".report.json"),
    ):
        assert reports["t1:docs:1"][1]["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("again_s", [0.05, *map(slow, (0.0, 0.01, 0.03, 0.1))])
def test_a_second_interrupt_changes_nothing(study, provider, again_s):
    provider.behave = lambda request, stop: (
        stop.wait(30) and None if request.arm == "docs" else None
    )
    condition = lambda: len(provider.received) == 2  # noqa: E731
    ended = interrupted(study, signal.SIGINT, condition, again_s=again_s)
    assert sessions.statuses(study) == {"t1:plain:1": "completed", "t1:docs:1": "failed"}
    assert sessions.observed(study)["t1:docs:1"].reason == INTERRUPTED
    assert f"the run stopped at t1:docs:1 with failed ({INTERRUPTED})" in ended.out
    assert list(study.folder.parents[1].glob("session-*/studyminimal-export-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(24))
def test_an_interrupt_at_any_moment(study, provider, moment):
    """From the first import to the last word: 0.1 s apart over a session that takes about two."""
    provider.behave = lambda _, stop: stop.wait(0.2) and None
    with sessions.started_session(study) as session:
        time.sleep(0.1 * moment)
        session.send(signal.SIGINT)
        ended = session.wait()
        assert ended.seconds < sessions.at_most(SOON_S)
        sessions.nothing_left(session)
    if study.ledger.exists():
        sessions.check_closed(study)
    goes_on(study, provider)


@pytest.mark.parametrize("again_s", [0.2, *map(slow, (0.25, 0.3, 0.35, 0.4, 0.5, 0.6))])
@pytest.mark.slow
def test_an_interrupt_of_pytests_own_last_words_finds_everything_closed(study, provider, again_s):
    provider.behave = sessions.sleeps
    with sessions.started_session(study) as session:
        session.until(lambda: provider.received, "the request")
        session.send(signal.SIGINT)
        time.sleep(again_s)
        session.send(signal.SIGINT)
        ended = session.wait()
        # Once Python ends itself, its default is back.
        assert ended.status in {2, -signal.SIGINT}
        assert "Traceback" not in ended.out + ended.err
        sessions.nothing_left(session)
    sessions.check_closed(study)
    assert sessions.observed(study)["t1:plain:1"].reason == INTERRUPTED


# Under xdist


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "group"),
    [
        slow(signal.SIGINT, True, id="ctrl-c"),
        pytest.param(signal.SIGTERM, False, id="sigterm"),
        slow(signal.SIGINT, False, id="sigint"),
        slow(signal.SIGTERM, True, id="sigterm to all"),
    ],
)
def test_workers_record_their_attempts_and_go(pytester, provider, number, group):
    provider.behave = sessions.sleeps
    study = sessions.make_study(pytester.path, provider, tasks=3)
    ended = interrupted(
        study, number, lambda: len(provider.received) == 2, group=group, arguments=["-n2"]
    )
    observed = sessions.observed(study)
    assert sorted(observed) == ["t1:plain:1", "t2:docs:1"]
    assert {(one.status, one.reason) for one in observed.values()} == {("failed", INTERRUPTED)}
    assert [one.body["measured"] for one in study.records("settle")] == [False, False]
    assert study.last_run().close.body["reason"] == INTERRUPTED
    assert len(provider.received) == 2
    assert "== study tiny · pilot ==" in ended.out
    assert f"with failed ({INTERRUPTED})" in ended.out


@pytest.mark.parametrize("again_s", [slow(0.0), slow(0.1), slow(0.5)])
def test_a_second_interrupt_changes_nothing_under_workers(pytester, provider, again_s):
    provider.behave = sessions.sleeps
    study = sessions.make_study(pytester.path, provider, tasks=2)
    interrupted(
        study,
        signal.SIGINT,
        lambda: len(provider.received) == 2,
        again_s=again_s,
        group=True,
        arguments=["-n2"],
    )
    assert {one.reason for one in sessions.observed(study).values()} == {INTERRUPTED}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_preflight_of_a_controller(pytester, provider, number):
    study = sessions.make_study(pytester.path, provider, tasks=2)
    sessions.slow_server(study, 1, "tools/list")
    interrupted(study, number, lambda: sessions.is_slow(study), arguments=["-n2"])
    assert not study.ledger.exists() or study.records("run") == []
    assert provider.received == []


@pytest.mark.slow
def test_one_interrupted_worker_ends_the_session(pytester, provider):
    provider.behave = lambda request, stop: stop.wait(30) and None if request.task == "t1" else None
    study = sessions.make_study(pytester.path, provider, tasks=3)
    with sessions.started_session(study, "-n2") as session:
        session.until(lambda: ("t1", "plain") in provider.seen, "the request")
        session.remember()
        session.sent = time.monotonic()
        sessions.os.kill(sessions.maker(study, "t1:plain:1"), signal.SIGTERM)
        end_of(session, study)
    assert sessions.observed(study)["t1:plain:1"].reason == INTERRUPTED
