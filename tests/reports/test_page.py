"""The page without a browser: what is in the file, what never is, and that hostile words stay words."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reported import Reported, opened

from pytest_studyminimal.cli import main
from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.reports.document import document
from pytest_studyminimal.reports.page.assembly import as_html

HOSTILE = json.loads((Path(__file__).parent / "hostile_words.json").read_text())
NAMES = [
    f"{task}:{arm}:{number}"
    for task in ("one", "two")
    for number in (1, 2)
    for arm in ("plain", "docs")
]


class Parsed(HTMLParser):
    """What a parser makes of a page: its elements, their attributes, its title and its text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.attributes, self.open, self.title, self.text = [], [], "", "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *one) for one in attrs]
        self.open = tag

    def handle_endtag(self, tag):
        self.open = ""

    def handle_data(self, data):
        if self.open == "title":
            self.title += data
        if self.open not in {"script", "style"}:
            self.text += data


@pytest.fixture
def ledger(tmp_path):
    with opened(tmp_path / "state") as one:
        yield one


def hostile_run(ledger, words, run="run-1"):
    """A run whose tools, problems, errors and environment are such words; the last attempt failed."""
    made = Reported(
        ledger,
        NAMES,
        run=run,
        phase="full",
        title="A study",
        corpora={words[3]: {"commit": words[0], "digest": words[5]}},
        agent={"version": words[0], "sha256": "f" * 64, "login": words[1]},
        transport_version=words[2],
    )
    for number, name in enumerate(NAMES):
        word = words[number % len(words)]
        made.observe(
            name,
            status="completed" if name != NAMES[-1] else "failed",
            reason=word,
            problems=(word,),
            tool_calls_by_name={word: 1, words[-1]: 2},
            offered_tools=(word,),
        )
    return made


def test_hostile_words_are_shown_as_they_are_and_make_no_element(ledger):
    answers = dict(zip(NAMES, HOSTILE, strict=False)) | {NAMES[-1]: "\n".join(HOSTILE)}
    hostile = Parsed(as_html(document(hostile_run(ledger, HOSTILE).view), answers))
    plain = ["word", *(f"plain {number}" for number in range(len(HOSTILE) - 1))]
    calm = Parsed(
        as_html(document(hostile_run(ledger, plain, "run-2").view), dict.fromkeys(NAMES, "word"))
    )

    for name in ("script", "style", "img", "a", "iframe", "form", "details", "title", "meta"):
        assert hostile.elements.count(name) == calm.elements.count(name), name
    assert hostile.elements.count("script") == 1
    assert hostile.title == calm.title == "PRIVATE: A study"
    for word in HOSTILE:
        shown = word.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        assert shown in hostile.text


def test_a_hostile_title_is_words_too(ledger):
    for word in HOSTILE[:3]:
        run = Reported(ledger, NAMES, run=f"run-{HOSTILE.index(word)}", title=word)
        assert Parsed(as_html(document(run.view))).title == word


def test_nothing_on_the_page_can_ask_for_anything(ledger):
    page = as_html(document(hostile_run(ledger, HOSTILE).view))
    parsed = Parsed(page)

    assert not set(parsed.elements) & {"a", "img", "link", "iframe", "object", "base", "image"}
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in {"style", "src"}, (tag, value)
        if name in {"href", "xlink:href"}:
            assert value.startswith("#"), value
    policy = dict.fromkeys(
        value for _, _, value in parsed.attributes if "default-src" in str(value)
    )
    (policy,) = policy
    assert policy.startswith("default-src 'none';")
    for name in ("script", "style"):
        (text,) = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_every_planned_attempt_is_on_the_page_and_every_mean_says_how_many_are_missing(ledger):
    run = Reported(ledger, NAMES, phase="full")
    for name in NAMES[:5]:
        run.observe(name)
    run.observe(NAMES[5], status="timed-out", reason="our deadline of 300 s ended it")
    parsed = Parsed(as_html(document(run.view)))

    for name in NAMES:
        assert name in parsed.text
    assert "our deadline of 300 s ended it" in parsed.text
    assert "blocked" in parsed.text
    assert "5 completed attempts, 3 missing" in parsed.text
    assert "2 pairs of the same task and repetition, 2 missing" in parsed.text
    assert "none judged, 4 missing" in parsed.text
    assert "3 of 8 attempts are missing or not valid" in parsed.text


def test_small_costs_zero_and_unknown_are_told_apart_and_totals_are_exact(ledger):
    run = Reported(ledger, NAMES, phase="full", cap="100")
    costs = ("0.00088", "0.00119458", "0.0000004", "0", None, "12.5")
    for name, cost in zip(NAMES, costs, strict=False):
        computed = None if cost is None else Decimal(cost)
        run.observe(name, cost or "0", computed_cost_usd=computed, usage=Usage(input_tokens=1))
    page = as_html(document(run.view))
    rows = re.findall(r"<tbody><tr><td>([^<]*)(.*?)</tr>", page)
    computed = {name: cells.split("<td>")[-1] for name, cells in rows if name in NAMES}

    told = ["$0.00088", "$0.00119458", "$0.0000004", "$0", "–", "$12.5"]
    assert [computed[name] for name in NAMES[:6]] == told
    assert "This run was charged $12.50207498;" in Parsed(page).text
    arms = {
        cells[0]: cells for name, row in reversed(rows) if (cells := [name, *row.split("<td>")[1:]])
    }
    assert "$0.0008804" in arms["plain"]
    assert "$12.50119458" in arms["docs"]


def test_a_rehearsal_is_marked_in_the_title_the_banner_and_every_picture(ledger):
    run = Reported(ledger, NAMES, rehearsal=True, account="rehearsal:run-1")
    for name in NAMES:
        run.observe(name)
    page = as_html(document(run.view))
    parsed = Parsed(page)

    assert parsed.title.startswith("Rehearsal: ")
    assert 'class="watermark"' in page
    assert page.count("<svg") == page.count("REHEARSAL · not evidence") > 10
    assert parsed.text.count("Rehearsal, not evidence.") == page.count("<svg")


def test_the_same_document_makes_the_same_page(ledger):
    report = document(hostile_run(ledger, HOSTILE).view)

    assert as_html(report) == as_html(report)


def test_answers_are_on_a_private_page_alone_and_nobody_else_can_read_its_file(ledger, tmp_path):
    Reported(ledger, NAMES, phase="full").observe(NAMES[0])
    out, kept = tmp_path / "report.html", tmp_path / "kept"
    kept.write_text("kept")
    out.symlink_to(kept)
    command = ["report", str(ledger.path), "--format", "html", "--output", str(out)]
    main([*command, "--private"], standalone_mode=False)
    private = out.read_text()

    assert "private words" in private
    assert "PRIVATE" in private
    assert stat.S_IMODE(out.lstat().st_mode) == 0o600
    assert kept.read_text() == "kept"
    assert {one.name for one in tmp_path.iterdir()} == {"report.html", "kept", "state"}
    main(command, standalone_mode=False)
    assert "private words" not in out.read_text()
    assert "PRIVATE" not in out.read_text()


def test_no_other_format_takes_answers(ledger, capsys):
    Reported(ledger, NAMES).observe(NAMES[0])
    with pytest.raises(SystemExit) as ended:
        main(["report", str(ledger.path), "--format", "json", "--private"])

    assert ended.value.code == 4
    assert "required --format html" in capsys.readouterr().err


def test_without_the_extra_the_refusal_is_one_line_that_names_it(ledger, capsys, monkeypatch):
    Reported(ledger, NAMES).observe(NAMES[0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(ledger.path), "--format", "html"])

    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert 'pip install "pytest-studyminimal[report]"' in said


def test_other_formats_load_nothing_of_the_extra():
    code = (
        "import sys, pytest_studyminimal.reports.reporting\n"
        "print({'jinja2', 'markupsafe', 'matplotlib', 'numpy'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )

    assert ran.stdout.strip() == "set()"


def test_a_name_in_dollar_signs_is_no_formula(ledger):
    run = Reported(ledger, NAMES[:2])
    for name in NAMES[:2]:
        run.observe(name, tool_calls_by_name={"$\\frac{": 1, "道具": 2})

    assert ">$\\frac{<" in as_html(document(run.view))


def test_a_page_of_a_run_that_never_began_is_whole(ledger):
    parsed = Parsed(as_html(document(Reported(ledger, NAMES).view)))

    assert parsed.text.count("blocked") > len(NAMES)
    assert "No pair to draw: 0 pairs of the same task and repetition, 4 missing" in parsed.text


def test_an_account_without_a_cap_says_so(ledger):
    report = document(Reported(ledger, NAMES).view)
    report["money"]["cap_usd"] = "unlimited"

    assert "reserved of unlimited." in as_html(report)


@pytest.mark.slow
def test_very_many_attempts_fit_and_what_is_not_shown_is_counted(ledger):
    run = Reported(ledger, NAMES)
    run.observe(NAMES[0])
    report = document(run.view)
    first = report["attempts"][0]
    report["attempts"] = [
        first | {"attempt": f"task-{place}:{first['scenario']}:1", "place": place}
        for place in range(20_000)
    ]
    page = as_html(report)

    assert len(page.encode()) < 3_000_000
    hidden = re.search(r"([\d,]+) attempts are not shown; the JSON and CSV formats have them", page)
    shown = len(re.findall(r"<td>task-\d+:", page))
    assert shown + int(hidden[1].replace(",", "")) == 20_000
    assert "The facts of" in page
    assert "An even sample of 240 is drawn" in page
