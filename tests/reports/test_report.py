"""A report of one run: what is in it, what never is, and hostile words in every format."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest
from reported import Reported, opened

from pytest_studyminimal.cli import main
from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.reports.document import document
from pytest_studyminimal.reports.renderings import as_csv, as_html, as_json, as_markdown

HOSTILE = '=HYPERLINK("x")|<script>alert(1)</script>\x1b[31m\u202e[a](http://x)@everyone`'
NAMES = [
    f"{task}:{arm}:{number}"
    for task in ("one", "two")
    for number in (1, 2)
    for arm in ("plain", "docs")
]


@pytest.fixture
def ledger(tmp_path):
    with opened(tmp_path / "state") as one:
        yield one


@pytest.fixture
def run(ledger):
    run = Reported(ledger, NAMES, phase="full", study_folder={"commit": "a" * 40, "dirty": True})
    for number, name in enumerate(NAMES[:-1]):
        tokens = 1000 + 100 * number if ":docs:" in name else 2000
        run.observe(name, "0.01", usage=Usage(input_tokens=tokens, output_tokens=100))
    run.observe(NAMES[-1], "0.02", status="failed", reason=HOSTILE)
    return run


def test_nothing_is_dropped_and_what_is_missing_is_counted(run):
    report = document(run.view)

    assert [one["attempt"] for one in report["attempts"]] == NAMES
    assert report["arms"]["docs"]["statuses"] == {"completed": 3, "failed": 1}
    tokens = report["arms"]["docs"]["metrics"]["prompt_tokens"]
    assert (tokens["n"], tokens["missing"]) == (3, 1)
    correctness = report["correctness"]["all"]
    assert correctness["missing_because"] == {"not adjudicated": 7, "failed": 1}
    assert (correctness["n"], correctness["mean"], correctness["range"]) == (0, None, ["0", "1"])
    assert [one["missing"] for one in report["pairs"]] == [[], [], [], ["docs: failed"]]
    effect = report["effects"][0]["metrics"]["prompt_tokens"]
    assert (effect["pairs"], effect["missing"]) == (3, 1)
    assert set(effect["by_task"]) == {"one", "two"}


def test_totals_are_exact(run):
    charged = document(run.view)["arms"]["plain"]["metrics"]["charged_usd"]

    assert charged["total"] == "0.04"
    assert document(run.view)["arms"]["docs"]["charged_usd"] == "0.05"
    assert Decimal(charged["mean"]) == Decimal("0.01")


def test_declarations_and_limitations_are_always_there(run):
    report = document(run.view)

    assert any(
        "no human review was performed" in line for line in report["declarations"].values() if line
    )
    assert any("exploratory" in line for line in report["declarations"].values() if line)
    assert "the study folder had changes beside its commit" in report["limitations"]
    assert "1 of 8 attempts are missing or not valid" in report["limitations"]


def test_a_rehearsal_is_marked_in_every_format(ledger):
    run = Reported(ledger, NAMES[:2], rehearsal=True, account="rehearsal:run-1")
    report = document(run.view)

    assert "nothing here is evidence" in as_json(report)
    assert "rehearsal, not evidence" in as_markdown(report)
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert {row["rehearsal"] for row in rows} == {"true"}


def test_hostile_words_are_harmless_in_every_format(run):
    report = document(run.view)

    assert json.loads(as_json(report)) == report
    cell = next(
        csv.DictReader(io.StringIO(as_csv({**report, "attempts": report["attempts"][-1:]})))
    )
    assert cell["reason"].startswith("'=HYPERLINK")
    text = as_markdown(report)
    assert "<script" not in text
    assert "[a](" not in text
    assert "@everyone" not in text
    assert all(char.isprintable() or char == "\n" for char in text)
    rows = [line for line in text.splitlines() if line.startswith("| two:docs:2")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 9


def test_no_answer_and_no_path_of_this_machine_is_in_it(ledger):
    run = Reported(
        ledger,
        NAMES[:2],
        agent={
            "program": "/home/somebody/claude",
            "version": "1",
            "expected_version": "1",
            "sha256": "f" * 64,
            "login": None,
        },
    )
    run.observe(NAMES[0])
    for text in (as_json(document(run.view)), as_markdown(document(run.view))):
        assert "private words" not in text
        assert "/home/somebody" not in text


def test_the_command_writes_one_run_and_refuses_in_one_line(run, tmp_path, capsys):
    path = run.ledger.path
    out = tmp_path / "report.json"
    main(["report", str(path), "--format", "json", "--output", str(out)], standalone_mode=False)

    assert json.loads(out.read_text())["run"] == "run-1"
    for arguments in (
        [str(path), "--run", "none"],
        [str(tmp_path / "none")],
        [str(path), "--output", str(tmp_path)],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["report", *arguments])
        assert ended.value.code == 4
        assert capsys.readouterr().err.count("\n") == 1


def test_a_full_run_is_reported_before_a_later_pilot(ledger, capsys):
    Reported(ledger, NAMES[:2], run="full-1", phase="full")
    Reported(ledger, NAMES[:2], run="pilot-1")

    main(["report", str(ledger.path), "--format", "json"], standalone_mode=False)

    assert json.loads(capsys.readouterr().out)["run"] == "full-1"


def many(ledger, count, **row):
    names = [
        f"t{task:04}:{arm}:{repetition}"
        for task in range(count // 10)
        for repetition in range(1, 6)
        for arm in ("plain", "docs")
    ]
    return Reported(ledger, names, phase="full", cap="1000", **row), names


@pytest.mark.parametrize("reason", [None, "| <b>`_*[" * 40])
def test_markdown_fits_a_comment_whatever_is_in_it_and_says_what_it_left_out(ledger, reason):
    run, names = many(ledger, 1000)
    for name in names[:-1]:
        run.record(name, status="completed" if reason is None else "failed", reason=reason)

    text = as_markdown(document(run.view))

    assert len(text) < 65_536
    shown = text.count("\n| t0")
    assert shown
    assert f"and {1000 - shown:,} more attempts, which JSON and CSV hold" in text
    assert text.rstrip().splitlines()[-1].startswith("Charged $0 in this run")


def test_markdown_of_many_arms_is_cut_and_says_so(ledger):
    arms = [f"arm-{number:03}-{'x' * 50}" for number in range(90)]
    run = Reported(ledger, [f"t:{arm}:1" for arm in arms], phase="full", scenarios=arms)

    text = as_markdown(document(run.view))

    assert len(text) < 65_536
    assert "cut here: JSON, CSV and HTML hold the rest" in text


@pytest.mark.slow
def test_a_thousand_attempts_make_a_page_under_a_megabyte(ledger):
    run, names = many(ledger, 1000)
    for name in names:
        run.record(name, "0.0123456", tool_calls_by_name={"repo_read": 3, "doc_search": 2})

    page = as_html(document(run.view))

    assert len(page.encode()) < 1_000_000
    assert all(f"<td>{name}<" in page for name in names)


def test_what_an_arm_was_to_have_was_offered_and_used(ledger):
    arms = {
        "plain": {"tools": ["read"], "servers": []},
        "docs": {"tools": ["read"], "servers": ["d"]},
    }
    facts = {
        "name": "<b>", "version": "1", "version_line": None, "protocol_version": "2025-11-25",
        "tools_json": '[{"name": "doc.search"}]', "reachable": {"t1": ["yes", "no"]},
    }  # fmt: skip
    run = Reported(ledger, NAMES[:4], arms=arms, servers={"c": {"d": facts}})
    for number, name in enumerate(NAMES[:4]):
        run.record(
            name,
            offered_tools=("repo_read", "doc_search")[: 1 + number % 2],
            tool_calls_by_name={"repo_read": 2},
            tool_errors_by_name={"repo_read": 1},
        )

    found = document(run.view)

    plain, docs = found["setups"]["plain"], found["setups"]["docs"]
    assert (plain["planned_servers"], docs["planned_servers"]) == ([], ["d"])
    assert (plain["offered_tools"], docs["offered_tools"]) == (
        ["repo_read"],
        ["doc_search", "repo_read"],
    )
    assert plain["tool_calls_by_name"] == {"repo_read": 4}
    assert plain["tool_errors_by_name"] == {"repo_read": 2}
    assert (plain["offered_sets"], plain["api_retries"]) == (1, None)
    assert found["provenance"]["servers"]["d"]["c"]["tools"] == ["doc.search"]
    assert r"repo\_read 4 (2)" in as_markdown(found)
    page = as_html(found)
    assert "&lt;b&gt; 1" in page
    assert "<b>" not in page


def test_an_arm_whose_tools_changed_between_attempts_is_told(ledger):
    run = Reported(ledger, ["t:plain:1", "t:docs:1", "t:docs:2", "t:plain:2"])
    for name, tools in zip(run.planned, (("a",), ("a",), ("a", "b"), ("a",)), strict=True):
        run.record(name, offered_tools=tools)

    found = document(run.view)

    assert [one["offered_sets"] for one in found["setups"].values()] == [1, 2]
    assert "Not every attempt was offered the same tools: docs." in as_html(found)
