"""Citations as answers write them, held against the files at the pin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_studyminimal.judging.citations import citations

FILES = {
    "docs/budget.md": b"one\ntwo\nthree\n",
    "src/a/mod.py": b"x = 1\n" * 50,
    "src/b/mod.py": b"y = 2\n" * 50,
    "README.md": b"hello\n",
}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("see docs/budget.md:2", [("docs/budget.md", 2, 2, "ok")]),
        ("see `docs/budget.md:1-3`.", [("docs/budget.md", 1, 3, "ok")]),
        ("see budget.md:1–2", [("docs/budget.md", 1, 2, "ok")]),
        ("(docs/budget.md#L2-L3)", [("docs/budget.md", 2, 3, "ok")]),
        ("docs/budget.md (lines 1-2)", [("docs/budget.md", 1, 2, "ok")]),
        ("./README.md:1", [("README.md", 1, 1, "ok")]),
        ("mod.py:3", [("mod.py", 3, 3, "ambiguous")]),
        ("a/mod.py:3", [("src/a/mod.py", 3, 3, "ok")]),
        ("docs/none.md:1", [("docs/none.md", 1, 1, "no file")]),
        ("docs/budget.md:99", [("docs/budget.md", 99, 99, "no line")]),
        ("docs/budget.md:3-1", [("docs/budget.md", 3, 1, "no line")]),
        ("docs/budget.md:0", [("docs/budget.md", 0, 0, "no line")]),
        ("at 10:30 and ratio 3:2, port localhost:80", []),
        ('src/a/mod.py:3: "x = 1 x = 1 x = 1"', [("src/a/mod.py", 3, 3, "ok")]),
        ("src/a/mod.py:3 has `x = 1 and y = 2`", [("src/a/mod.py", 3, 3, "other words")]),
        (
            "src/a/mod.py:3 says \u201cnothing of the kind\u201d",
            [("src/a/mod.py", 3, 3, "other words")],
        ),
        ('src/a/mod.py:3\n"what another line quotes"', [("src/a/mod.py", 3, 3, "ok")]),
        (
            "`docs/budget.md:1` and then consider also `README.md:1` too",
            [("docs/budget.md", 1, 1, "ok"), ("README.md", 1, 1, "ok")],
        ),
        ("docs/budget.md:2 and again docs/budget.md:2", [("docs/budget.md", 2, 2, "ok")]),
    ],
)
def test_a_citation_is_found_and_checked(answer, expected):
    assert [
        (one.path, one.first, one.last, one.found) for one in citations(answer, FILES)
    ] == expected


def test_the_cited_lines_come_with_a_few_around_them():
    (one,) = citations("docs/budget.md:2", FILES)

    assert one.text.split("\n")[:3] == ["one", "two", "three"]


@given(st.text(max_size=300))
def test_no_answer_raises(answer):
    citations(answer, FILES)


def test_a_hostile_answer_takes_no_time():
    citations("a/" * 50_000 + ":1 " + "x.y:1 " * 50_000, FILES)
