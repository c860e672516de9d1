"""`--study-report DIR`: every format of the report, beside any run, and nothing private in it."""

from __future__ import annotations

import json
import os
import re
import stat
from decimal import Decimal

import pytest
import sessions
from providers import Response, message, text
from sessions import slow

import studies

FILES = {"report.csv", "report.html", "report.json", "report.md"}
SECRET = "SECRET-ANSWER-of-an-attempt"


def secretive(_request, _stop):
    return Response(message(text(f"The cap is cumulative. {SECRET}")))


@pytest.fixture
def provider():
    with sessions.behaving(secretive) as one:
        yield one


@pytest.fixture
def study(pytester, provider):
    return sessions.make_study(pytester.path, provider, tasks=2)


def files(folder):
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}


@pytest.mark.parametrize("workers", [(), slow(("-n2",))])
def test_a_run_leaves_its_report_in_every_format(study, tmp_path, workers):
    into = tmp_path / "a b" / "report"

    ended = sessions.run(study, f"--study-report={into}", *workers)

    assert ended.status == 0, ended.out + ended.err
    assert f"report in {into}" in ended.out
    written = files(into)
    assert set(written) == FILES
    document = json.loads(written["report.json"])
    row = study.records("run")[-1]
    assert (document["run"], document["phase"]) == (row.run, "pilot")
    assert [one["status"] for one in document["attempts"]] == ["completed"] * 4
    spent = sum(Decimal(one.body["charged_usd"]) for one in study.records("settle"))
    assert Decimal(document["money"]["charged_usd"]) == spent
    for words in written.values():
        assert row.run in words
        for private in (SECRET, studies.KEY, "PROPOSITION-", str(study.checkout)):
            assert private not in words


def test_a_relative_folder_is_of_where_pytest_was_started(study):
    assert sessions.run(study, "--study-report=out").status == 0
    assert set(files(study.folder.parents[1] / "out")) == FILES


def test_a_stopped_run_reports_what_was_not_reached(study, provider, tmp_path):
    provider.behave = lambda _request, _stop: Response({"type": "error"}, status=500)

    ended = sessions.run(study, f"--study-report={tmp_path / 'r'}")

    assert ended.status == 1
    document = json.loads((tmp_path / "r" / "report.json").read_text())
    assert [one["status"] for one in document["attempts"]] == ["failed"] + ["blocked"] * 3
    assert document["correctness"]["all"]["missing"] == 4
    assert document["stopped"]["attempt"] == document["attempts"][0]["attempt"]


@pytest.mark.parametrize("kind", ["a file", "below a file", slow("read only")])
def test_a_folder_that_cannot_be_written_is_refused_before_any_money(
    study, provider, tmp_path, kind
):
    (tmp_path / "taken").write_text("kept")
    into = tmp_path / "taken"
    if kind == "below a file":
        into = into / "report"
    if kind == "read only":
        into = tmp_path / "locked"
        into.mkdir(mode=0o500)
        if os.access(into, os.W_OK):
            # Root writes everywhere but here.
            into = "/proc/self/report"

    ended = sessions.run(study, f"--study-report={into}")

    assert (ended.status, len(ended.error_lines)) == (4, 1), ended.out + ended.err
    assert re.search(r"--study-report: found .*, required a folder", ended.error_lines[0])
    assert provider.received == []
    assert not study.ledger.exists()
    assert (tmp_path / "taken").read_text() == "kept"


def test_a_folder_that_vanishes_costs_one_line_and_no_attempt(study, provider, tmp_path):
    into = tmp_path / "report"

    def removes(request, stop):
        if into.is_dir():
            into.rmdir()
            into.write_text("a file in its place")
        return secretive(request, stop)

    provider.behave = removes

    ended = sessions.run(study, f"--study-report={into}")

    assert ended.status == 0
    assert ended.out.count("--study-report: found ") == 1
    assert "Traceback" not in ended.out + ended.err
    assert set(sessions.statuses(study).values()) == {"completed"}


def test_an_adjudication_writes_the_report_of_the_run_that_it_judged(pytester, monkeypatch):
    study = studies.make_study(pytester.path, tasks=("alpha",))
    study.add('\n[adjudicator]\nconnection = "http"\nattempt_usd = "0.10"\n')
    test = (
        "def test_attempt(study_attempt):\n    study_attempt.run()\n\n\n"
        "def test_adjudication(study_adjudication):\n    study_adjudication.run()\n"
    )
    (study.folder / "test_tiny.py").write_text(test)
    (pytester.path / "pytest.ini").write_text("[pytest]\n")
    into = pytester.path / "report"
    free = ("--study-rehearse", f"--study-report={into}")

    assert sessions.run(study, *free, phase="full").status == 0
    before = json.loads((into / "report.json").read_text())
    ended = sessions.run(study, *free, phase="adjudicate")

    assert ended.status == 0, ended.out + ended.err
    after = json.loads((into / "report.json").read_text())
    assert (after["run"], after["phase"]) == (before["run"], "full")
    assert before["correctness"]["all"]["missing"] == 2
    assert after["correctness"]["all"]["missing"] == 0
    assert after["adjudication"]["judged"] == 2
    assert "not evidence" in (into / "report.md").read_text()


def test_the_step_summary_of_a_workflow_gets_the_markdown_once(study, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("what was there\n")

    ended = sessions.run(
        study, f"--study-report={tmp_path / 'r'}", GITHUB_STEP_SUMMARY=str(summary)
    )

    assert ended.status == 0
    assert summary.read_text() == "what was there\n" + (tmp_path / "r" / "report.md").read_text()


def test_a_summary_that_cannot_be_written_is_one_line(study, tmp_path):
    ended = sessions.run(
        study, f"--study-report={tmp_path / 'r'}", GITHUB_STEP_SUMMARY=str(tmp_path)
    )

    assert ended.status == 0
    assert "GITHUB_STEP_SUMMARY: found Is a directory" in ended.out
    assert set(files(tmp_path / "r")) == FILES


def test_the_command_appends_to_the_summary_too_and_never_the_private_page(study, tmp_path):
    assert sessions.run(study).status == 0
    summary, page = tmp_path / "summary.md", tmp_path / "page.html"

    done = sessions.studyminimal(
        *("report", study.ledger, "--format", "html", "--private", "--output", page),
        GITHUB_STEP_SUMMARY=str(summary),
    )

    assert done.returncode == 0, done.stderr
    assert SECRET in page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert summary.read_text().startswith("## ")
    assert SECRET not in summary.read_text()
