"""What a person sees, on a terminal and in a log."""

from __future__ import annotations

import os
import pty
import re
import subprocess

import pytest
from providers import Response, message, text

import studies


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url, tasks=("alpha", "beta"))


def on_a_terminal(pytester, *arguments, columns=100):
    """Run pytest with a terminal of its own and return all that it wrote."""
    ours, theirs = pty.openpty()
    session = subprocess.Popen(
        [*studies.PYTEST, *arguments],
        cwd=pytester.path,
        env=studies.environment(COLUMNS=str(columns), TERM="xterm-256color"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # Linux: the other side was closed
            break
        if not data:
            break
        written += data
    os.close(ours)
    return session.wait(), written.decode("utf-8")


def screen_of(written):
    """Return the lines that stay, as a terminal would show them after our live text was erased."""
    kept = re.sub(r"\x1b7.*?\x1b8", "", written)
    kept = re.sub(r"\x1b\[[0-9;]*[mK]", "", kept)
    return [line.rstrip("\r") for line in kept.split("\n")]


def test_a_live_line_shows_place_time_dollars_and_what_is_next(study, pytester):
    status, written = on_a_terminal(pytester, "--study=pilot", *study.arguments)
    assert status == 0
    live = re.findall(r"\x1b7\x1b\[K\x1b\[2m(.*?)\x1b\[0m\x1b8", written)
    assert live, written
    assert any(
        re.search(r"alpha:plain:1 · \d+ s · 1/2 · \$0 · next alpha:docs:1", line) for line in live
    )
    assert any(
        re.search(r"alpha:docs:1 · \d+ s · 2/2 · \$0\.0008 · next the summary", line)
        for line in live
    )


@pytest.mark.slow
@pytest.mark.parametrize("verbosity", [(), ("-v",), ("-q",)])
@pytest.mark.parametrize("columns", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_the_live_line_leaves_nothing_behind(study, pytester, verbosity, columns):
    _, written = on_a_terminal(
        pytester, "--study=pilot", *verbosity, *study.arguments, columns=columns
    )
    kept = screen_of(written)
    assert not [line for line in kept if "next alpha" in line]
    assert any("2 passed" in line for line in kept)
    for line in re.findall(r"\x1b7\x1b\[K\x1b\[2m(.*?)\x1b\[0m\x1b8", written):
        assert len(line) < columns


def test_without_a_terminal_there_is_no_live_line(study, run_pytest):
    assert "\x1b7" not in run_pytest("--study=pilot", *study.arguments).stdout.str()


@pytest.mark.slow
def test_up_to_forty_attempts_are_listed_and_more_with_v(pytester, provider, run_pytest):
    tasks = tuple(f"task-{number}" for number in range(21))
    study = studies.make_study(pytester.path, base_url=provider.base_url, tasks=tasks)
    study.add("[pilot]\ntasks = 21\n")
    quiet = run_pytest("--study=pilot", *study.arguments)
    assert not [line for line in quiet.outlines if line.startswith("task-3:plain:1 ")]
    quiet.stdout.fnmatch_lines(["plain * 21 * 21 *"])
    loud = run_pytest("--study=pilot", "-v", *study.arguments)
    assert len([line for line in loud.outlines if line.startswith("task-3:plain:1 ")]) == 1


def test_pytests_own_categories_and_failure_section_stay(study, run_pytest, provider):
    provider.serve([Response(message(text("x"))), Response({}, status=500)])
    result = run_pytest("--study=pilot", *study.arguments)
    result.stdout.fnmatch_lines(
        [
            "*= FAILURES =*",
            "failed: *HTTP 500*",
            "FAILED failed studies/tiny/test_tiny.py::test_attempt[[]alpha:docs:1] - Failed:*",
            "*1 failed, 1 passed*",
        ]
    )


def test_every_printed_cost_has_all_its_digits(study, run_pytest, provider):
    usage = {"input_tokens": 1, "output_tokens": 1}
    provider.serve([Response(message(text("x"), usage=usage))])
    result = run_pytest("--study=pilot", "-v", *study.arguments)
    result.stdout.fnmatch_lines(["*1 in · 1 out · $0.000003 *", "*$0.000006 *"])


@pytest.mark.slow
def test_an_ascii_terminal_gets_a_live_line_too(study, pytester, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    status, written = on_a_terminal(pytester, "--study=pilot", *study.arguments)
    assert status == 0
    assert "INTERNALERROR" not in written
    assert "next alpha:docs:1" in written
