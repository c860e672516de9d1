"""Hostile text on its way to a line of output."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_studyminimal.protocol.text import one_line

ANYTHING = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("hostile", "plain"),
    [
        ("a\nb\r\nc\td", "a\\x0ab\\x0d\\x0ac\\x09d"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("a\u2028b\u2029c\x85d", "a\\u2028b\\u2029c\\x85d"),
        ("\u202eexe.txt\u2066", "\\u202eexe.txt\\u2066"),
        ("\ud800\udfff", "\\ud800\\udfff"),
        ("\U000e0001", "\\U000e0001"),
        ("é 😀 漢", "é 😀 漢"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(hostile, plain):
    assert one_line(hostile) == plain


@given(ANYTHING, st.integers(1, 400))
def test_any_text_is_one_printable_line_of_utf8_within_its_limit(text, limit):
    line = one_line(text, limit)

    assert all(char.isprintable() for char in line)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    line.encode()


def test_a_cut_is_visible_and_only_where_there_is_one():
    assert one_line("x" * 300) == "x" * 300
    assert one_line("x" * 301) == "x" * 299 + "…"


@given(st.text(st.characters(categories=("L", "N", "P", "S")), max_size=300))
def test_printable_text_stays_as_it_is(text):
    assert one_line(text) == text


def test_a_huge_text_costs_no_more_than_its_beginning():
    assert one_line("\x1b" * 5_000_000, 8) == "\\x1b\\x1…"
