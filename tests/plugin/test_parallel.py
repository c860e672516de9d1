"""Under pytest-xdist: one gate, one run, pairs together, and a cap that holds for all workers at once."""

from __future__ import annotations

import random
import time
from decimal import Decimal

import pytest
import sessions
from providers import Response, message, text, usage
from sessions import slow

import studies


@pytest.fixture
def provider():
    with sessions.behaving(sessions.answers) as one:
        yield one


@pytest.fixture
def study(pytester, provider):
    return sessions.make_study(pytester.path, provider, tasks=2)


def refused(ended, pattern):
    """One line of error and exit status 4, whatever xdist makes of it."""
    assert (ended.status, len(ended.error_lines)) == (4, 1), ended.out + ended.err
    assert ended.error_lines[0].startswith("ERROR: ")
    assert pattern in ended.error_lines[0]
    assert "Traceback" not in ended.out
    assert "INTERNALERROR" not in ended.out


# Refusals


@pytest.mark.parametrize(
    "how",
    [["-n2"], slow(["-n1"]), slow(["--tx=2*popen", "--dist=load"]), slow(["--tx=popen", "-d"])],
)
def test_workers_are_refused_for_a_study_whose_attempts_run_in_turn(study, provider, how):
    study.edit("parallel = true", "parallel = false")
    refused(
        sessions.run(study, *how), "-n: found with study tiny, required schedule.parallel = true"
    )
    assert provider.received == []
    assert not study.ledger.exists()


@pytest.mark.parametrize("how", [["-n0"], slow(["--dist=no"]), slow(["--tx=2*popen", "--dist=no"])])
@pytest.mark.slow
def test_without_workers_such_a_study_runs(study, provider, how):
    study.edit("parallel = true", "parallel = false")
    assert sessions.run(study, *how).status == 0
    assert len(provider.received) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "pattern"),
    [
        (["-n2", "--dist=each"], "--dist each: found with --study"),
        slow(["--tx=2*popen", "--dist=each"], "--dist each: found with --study"),
        slow(
            ["--tx=ssh=nowhere.invalid", "--dist=load"],
            "--tx: found 'ssh=nowhere.invalid', required popen",
        ),
        (
            ["--tx=popen//python=python3", "--dist=load"],
            "--tx: found 'popen//python=python3', required popen",
        ),
        slow(
            ["--tx=popen//chdir=/", "--dist=load"], "--tx: found 'popen//chdir=/', required popen"
        ),
        slow(
            ["--tx=2*socket=127.0.0.1:9", "--dist=load"],
            "--tx: found '2*socket=127.0.0.1:9', required popen",
        ),
        (["--px=popen", "-n2"], "--px: found with --study"),
        slow(["-n2", "--reruns=2"], "--reruns: found with --study"),
    ],
)
def test_ways_to_distribute_that_would_break_a_study_are_refused(study, provider, how, pattern):
    refused(sessions.run(study, *how), pattern)
    assert provider.received == []
    assert not study.ledger.exists()


def break_the_study_file(study):
    study.edit('corpus = "corpus"', 'corpus = "corpora"')


def break_the_pin(study):
    study.edit(studies.git(study.checkout, "rev-parse", "HEAD"), "0" * 40)


def break_the_key_of_answers(study):
    (study.folder / "answers.toml").write_text("[tasks.t1]\npropositions = 3\n")


def break_the_server(study):
    (study.folder / "docs_server.py").write_text("raise SystemExit(3)\n")


def mark_as_flaky(study):
    file = study.folder / "test_tiny.py"
    file.write_text(
        file.read_text().replace(
            "def test_", "import pytest\n@pytest.mark.flaky(reruns=2)\ndef test_"
        )
    )


def multiply(study):
    file = study.folder / "test_tiny.py"
    file.write_text(
        "import pytest\n"
        + file.read_text()
        .replace("def test_", "@pytest.mark.parametrize('n', [1, 2])\ndef test_")
        .replace("(request, ", "(request, n, ")
    )


def leave(study):
    """Change nothing: the arguments or the environment are at fault."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "arguments", "variables", "pattern"),
    [
        (break_the_study_file, [], {}, 'tasks[0].corpus: found "corpora", required one of corpus'),
        slow(break_the_key_of_answers, [], {}, "answers.toml: tasks.t1.propositions"),
        slow(break_the_pin, [], {}, "corpus corpus: found"),
        slow(break_the_server, [], {}, "servers.docs: found no answer to initialize: it ended"),
        (mark_as_flaky, [], {}, "found the mark flaky, required none"),
        slow(multiply, [], {}, "no attempt of the plan"),
        slow(
            leave,
            ["--study-connection=other"],
            {},
            "--study-connection: found 'other', required one of http",
        ),
        slow(leave, ["--study-budget-usd=0"], {}, "--study-budget-usd: found '0'"),
        slow(leave, ["--study-root=corpus=/nowhere"], {}, "/nowhere"),
        slow(leave, [], {studies.KEY_NAME: ""}, f"{studies.KEY_NAME}: found nothing"),
        slow(leave, [], {"STUDY_MODEL": "other"}, "STUDY_MODEL: found 'other'"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_no_worker(
    study, provider, spoil, arguments, variables, pattern
):
    spoil(study)
    refused(sessions.run(study, "-n2", *arguments, **variables), pattern)
    assert provider.received == []
    assert not study.ledger.exists() or study.records("run") == []


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        slow([], "--study full: found no approval, required --approve-budget"),
        slow(["--approve-budget"], "--study full: found no completed pilot, required"),
    ],
)
def test_a_full_run_is_refused_under_workers_as_without(study, provider, arguments, pattern):
    refused(sessions.run(study, "-n2", *arguments, phase="full"), pattern)
    assert provider.received == []


# A parallel run


def plain(properties):
    """What must be equal in every way of running: all but clocks and the run's own id."""
    return {name: value for name, value in properties.items() if name not in {"run", "wall_s"}}


@pytest.mark.slow
def test_two_workers_report_what_one_process_reports(study, pytester):
    alone = sessions.run(study, "--junitxml=a.xml", "--json-report", "--json-report-file=a.json")
    together = sessions.run(
        study, "-n2", "--junitxml=b.xml", "--json-report", "--json-report-file=b.json"
    )
    assert (alone.status, together.status) == (0, 0), together.out + together.err
    for read, (one, other) in (
        (sessions.junit, ("a.xml", "b.xml")),
        (sessions.json_report, ("a.json", "b.json")),
    ):
        serial, parallel = read(pytester.path / one), read(pytester.path / other)
        assert len(serial) == 4
        for attempt, (outcome, properties) in serial.items():
            assert parallel[attempt][0] == outcome
            assert plain(parallel[attempt][1]) == plain(properties)
            assert set(parallel[attempt][1]) == set(properties)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, slow(4)])
def test_every_attempt_runs_once_and_its_pair_on_one_worker_in_order(pytester, workers):
    with sessions.behaving(lambda *_: time.sleep(random.uniform(0, 0.05))) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=3, repetitions=2)
        study.edit("repetitions = 1\nparallel", "repetitions = 2\nparallel")
        sessions.slow_server(study)
        ended = sessions.run(study, f"-n{workers}", "-v", PYTHONHASHSEED="random")
    assert ended.status == 0, ended.out + ended.err
    planned = [line.attempt for line in study.last_run().lines]
    made = sessions.made(study)
    assert sorted(attempt for _, attempt in made) == sorted(one.id for one in planned)
    assert len(provider.received) == len(planned) == 12
    for pair in {one.pair for one in planned}:
        arms = [one.id for one in planned if one.pair == pair]
        assert [attempt for _, attempt in made if attempt in arms] == arms
        assert len({worker for worker, attempt in made if attempt in arms}) == 1
    assert len({worker for worker, _ in made}) == min(workers, 6)
    # Preflight once, whatever the number of workers, and one start for every attempt that uses it.
    assert sessions.server_starts(study) == 1 + sum(one.scenario == "docs" for one in planned)
    assert len(study.records("run")) == len(study.records("approval")) == 1
    sessions.check_closed(study)
    assert ended.out.count("12 attempts by anthropic model claude-haiku-5-5 under a cap of $1") == 1
    assert "median of 6 pairs" in ended.out
    assert ended.out.count("study tiny · pilot ===") == 1


@pytest.mark.slow
def test_a_worker_that_reads_another_plan_runs_nothing(pytester):
    # In memory: a file that changes while others read it would be another test.
    spoil = """
import dataclasses, os

def pytest_collection_finish(session):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        folders = session.config.pluginmanager.get_plugin("studyminimal-session").folders
        for path, folder in folders.items():
            folders[path] = dataclasses.replace(folder, key_sha256="0" * 64)
"""
    with sessions.behaving(lambda *_: time.sleep(0.5)) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=2)
        (study.folder / "conftest.py").write_text(spoil)
        ended = sessions.run(study, "-n2", str(study.folder))
    assert ended.status == 1
    assert {worker for worker, _ in sessions.made(study)} == {"gw0"}
    assert "found another protocol than the controller's, required the same" in ended.out
    assert "Traceback" not in ended.out
    assert ">   " not in ended.out
    sessions.check_closed(study)


# Money


def priced(study, *arguments):
    """Run with prices at which a call reserves, and then costs, somewhat less than 0.10 USD."""
    return sessions.run(
        study,
        *arguments,
        "--study-input-usd-per-million=0.5",
        "--study-output-usd-per-million=90",
    )


@pytest.mark.parametrize("cap", ["0.30", slow("0.50")])
def test_the_cap_holds_for_four_workers_at_once(pytester, cap):
    def slow_and_dear(*_):
        time.sleep(0.2)
        return Response(message(text("docs/budget.md:3"), usage=usage(output_tokens=1024)))

    with sessions.behaving(slow_and_dear) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=5)
        ended = priced(study, "-n4", f"--study-budget-usd={cap}")
    fits = int(Decimal(cap) / Decimal("0.1"))
    assert ended.status == 1
    assert len(provider.received) == fits
    records = sessions.check_closed(study)
    assert all(record.balance.committed_usd <= Decimal(cap) for record in records)
    assert records[-1].balance.committed_usd > Decimal(cap) - Decimal("0.05")
    kinds = list(sessions.statuses(study).values())
    assert (kinds.count("completed"), kinds.count("blocked")) == (fits, 10 - fits)
    refused = [one for one in sessions.observed(study).values() if one.status == "blocked"]
    assert refused
    # One that had started when another was refused met the stop of the run instead.
    assert any(one.reason.startswith("budget: cap ") for one in refused)
    assert all(one.reason.startswith(("budget: cap ", "the run stopped")) for one in refused)
    assert all(one.charged_usd == 0 for one in refused)
    assert "Traceback" not in ended.out


def test_a_failed_attempt_stops_the_run_for_every_worker(pytester):
    def first_fails(request, _stop):
        if request.task == "t1":
            return Response({"type": "error", "error": {"type": "overloaded_error"}}, 529)
        time.sleep(1.0)
        return None

    with sessions.behaving(first_fails) as provider:
        study = sessions.make_study(pytester.path, provider, tasks=4)
        ended = sessions.run(study, "-n2", "-rs", "--junitxml=j.xml")
    assert ended.status == 1
    statuses = sessions.statuses(study)
    assert statuses["t1:plain:1"] == "failed"
    # The other worker was in an attempt by then, or about to start one; nothing followed.
    assert set(statuses.values()) <= {"failed", "completed", "blocked"}
    assert list(statuses.values()).count("blocked") >= 6
    assert len(provider.received) <= 2
    sessions.check_closed(study)
    stop = study.records("stop")[0]
    assert (stop.attempt, [one for one in study.records("start") if one.seq > stop.seq]) == (
        "t1:plain:1",
        [],
    )
    cases = sessions.junit(pytester.path / "j.xml")
    assert len(cases) == 8
    assert {name: properties["status"] for name, (_, properties) in cases.items()} == statuses
    assert "the run stopped at t1:plain:1" in ended.out
