"""What a model is told by the repository tools, and that every cut is said."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repos import built, corpus_of, read

from pytest_studyminimal.workspace.arguments import meanings, shown
from pytest_studyminimal.workspace.corpus import Corpus
from pytest_studyminimal.workspace.tools import RepositoryTools

ALL = ("list", "read", "search")


def tools_over(files):
    """Return all tools over files that need no repository to be built."""
    ordered = dict(sorted(files.items()))
    corpus = Corpus(
        name="docs",
        commit="0" * 40,
        files=MappingProxyType(ordered),
        blob_ids=MappingProxyType(dict.fromkeys(ordered, "0" * 40)),
        excluded=MappingProxyType({}),
    )
    return RepositoryTools(corpus, ALL)


def lines(result):
    assert not result.is_error, result.text
    return result.text.split("\n")


# What is offered.


def test_the_tools_of_a_scenario_are_offered_in_one_order():
    corpus = tools_over({})._corpus
    for names, offered in (
        (("search", "list", "read"), ["repo_list", "repo_read", "repo_search"]),
        (("read",), ["repo_read"]),
        ((), []),
    ):
        assert [tool.name for tool in RepositoryTools(corpus, names).definitions] == offered


def test_every_schema_refuses_what_it_does_not_name():
    for tool in tools_over({}).definitions:
        assert tool.input_schema["additionalProperties"] is False
        assert tool.description
        json.dumps(tool.model_dump())


def test_a_tool_that_is_not_offered_is_an_error():
    tools = RepositoryTools(tools_over({"a": b"x"})._corpus, ("list",))
    assert tools.call("repo_read", {"path": "a"}).text == (
        "found the tool repo_read, required one of repo_list"
    )
    assert tools.call("repo_read", {"path": "a"}).is_error
    assert (
        RepositoryTools(tools._corpus, ()).call("\n", {}).text.endswith("required one of no tool")
    )


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        ("repo_read", {}, "path: found nothing, required this argument"),
        ("repo_read", {"path": 3}, "path: found 3, required text"),
        ("repo_read", {"path": None}, "path: found null, required text"),
        ("repo_read", {"path": "a", "x\n": 1}, "x\\x0a: found an unknown argument, required"),
        (
            "repo_read",
            {"path": "a", "start_line": 0},
            "start_line: found 0, required a whole number",
        ),
        (
            "repo_read",
            {"path": "a", "start_line": True},
            "start_line: found true, required a whole",
        ),
        ("repo_read", {"path": "a", "start_line": 1.0}, "start_line: found 1.0, required a whole"),
        ("repo_read", {"path": "a", "start_line": "1"}, 'start_line: found "1", required a whole'),
        ("repo_read", {"path": "a", "end_line": -1}, "end_line: found -1, required a whole number"),
        ("repo_read", {"path": "a", "start_line": 3}, "start_line: found 3, required at most 2"),
        (
            "repo_read",
            {"path": "a", "start_line": 2, "end_line": 1},
            "end_line: found 1, required at",
        ),
        (
            "repo_read",
            {"path": "b"},
            "path: found no file b, required a path as repo_list gives it",
        ),
        ("repo_read", {"path": ""}, 'path: found no file "", required'),
        ("repo_read", {"path": "\ud800"}, 'path: found no file "\\ud800", required'),
        ("repo_read", [], "found [], required an object of arguments"),
        ("repo_list", {"path": "a"}, "path: found an unknown argument, required prefix"),
        ("repo_list", {"prefix": ["a"]}, 'prefix: found ["a"], required text'),
        ("repo_search", {}, "query: found nothing, required this argument"),
        ("repo_search", {"query": ""}, "query: found nothing, required 1 to 1,000 characters"),
        ("repo_search", {"query": "a\nb"}, "query: found "),
        ("repo_search", {"query": "\ud800"}, "query: found "),
        ("repo_search", {"query": "x" * 1001}, "query: found 1,001 characters, required"),
        ("repo_search", {"query": {"regex": "x"}}, "query: found {"),
    ],
)
def test_wrong_arguments_are_an_error_of_one_line(name, arguments, line):
    result = tools_over({"a": b"one\ntwo\n"}).call(name, arguments)
    assert result.is_error
    assert result.text.startswith(line)
    assert result.text.isprintable()


# Paths.


@pytest.mark.parametrize(
    "path", ["../a.md", "/a.md", "./a.md", "docs", "docs/", "docs//b.md", "A.md", "a.md/"]
)
def test_only_the_very_path_of_a_file_is_read(path):
    assert tools_over({"a.md": b"x", "docs/b.md": b"x"}).call("repo_read", {"path": path}).is_error


def test_links_are_neither_listed_nor_read_nor_searched(tmp_path):
    built("symlinks", tmp_path / "repo")
    tools = RepositoryTools(read(tmp_path / "repo"), ALL)
    assert lines(tools.call("repo_list", {})) == ["docs/a.md"]
    for path in ("dirlink/a.md", "leak.md", "loop", "up", "dirlink"):
        assert tools.call("repo_read", {"path": path}).is_error
    assert lines(tools.call("repo_search", {"query": "docs"}))[0].startswith("[0 matching lines")


@pytest.mark.parametrize(
    "name",
    [
        *(
            b"docs/caf\xc3\xa9.md",
            b"docs/\xe4\xb8\xad\xe6\x96\x87.md",
            b"docs/ lead.md",
            b' "',
            b"a ",
        ),
        *(
            b'docs/q"uote.md',
            b"docs/back\\slash.md",
            b"docs/tab\there.md",
            b"new\nline",
            b"\xff\xfe",
        ),
        *(b'"quoted"', b'"', b"\xe2\x80\xae.md", b"\xed\xa0\x80", b"a\\tb", b"[1 of 2 paths]"),
    ],
)
def test_a_file_is_found_by_the_name_the_list_gives_and_by_its_own(tmp_path, name):
    tools = RepositoryTools(corpus_of(tmp_path / "repo", {name: b"needle"}), ALL)
    (given_name,) = lines(tools.call("repo_list", {}))
    own = name.decode("utf-8", "surrogateescape")
    for path in (given_name, own):
        assert lines(tools.call("repo_read", {"path": path})) == ["1\tneedle"]
        assert lines(tools.call("repo_list", {"prefix": path})) == [given_name]
    (match, _) = lines(tools.call("repo_search", {"query": "needle"}))
    assert match == f"{given_name}:1: needle"


@settings(database=None, deadline=None)
@given(st.text(st.characters(exclude_categories=[])).filter(lambda path: "/" not in path))
def test_a_shown_name_is_one_printable_line_that_means_its_path_first(path):
    assert shown(path).isprintable()
    assert meanings(shown(path))[0] == path


# List.


def test_a_list_is_cut_at_200_paths_and_says_so():
    tools = tools_over({f"{number:04}.md": b"" for number in range(1234)})
    found = lines(tools.call("repo_list", {}))
    assert found[:2] == ["0000.md", "0001.md"]
    assert len(found) == 201
    assert found[-1] == "[200 of 1,234 paths; at most 200 paths and 60,000 bytes per call]"
    assert lines(tools.call("repo_list", {"prefix": "123"})) == [
        f"123{number}.md" for number in range(4)
    ]
    assert lines(tools.call("repo_list", {"prefix": "x"})) == ["[0 paths]"]


def test_200_paths_are_not_a_cut():
    assert len(lines(tools_over({f"{n}": b"" for n in range(200)}).call("repo_list", {}))) == 200


def test_a_list_of_very_long_paths_is_cut_by_bytes_and_says_so():
    result = tools_over({f"{number:03}" + "x" * 997: b"" for number in range(100)}).call(
        "repo_list", {}
    )
    assert lines(result)[-1] == "[59 of 100 paths; at most 200 paths and 60,000 bytes per call]"
    assert result.original_bytes == 100 * 1001 - 1


# Read.


def test_lines_are_numbered_and_counted_by_line_feeds_alone():
    data = "a\rb\u2028c\x0bd\x85e\r\nlast".encode()
    assert tools_over({"a": data}).call("repo_read", {"path": "a"}).text == (
        "1\ta\rb\u2028c\x0bd\x85e\r\n2\tlast"
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "[0 lines: the file is empty]"),
        (b"\n", "1\t"),
        (b"\n\n", "1\t\n2\t"),
        (b"x", "1\tx"),
        (b"x\n", "1\tx"),
        (b"x\n\ny", "1\tx\n2\t\n3\ty"),
    ],
)
def test_a_last_line_feed_ends_a_line_and_begins_none(data, text):
    assert tools_over({"a": data}).call("repo_read", {"path": "a"}).text == text


def test_a_range_of_lines_is_read():
    tools = tools_over({"a": b"".join(b"%d\n" % number for number in range(1, 10))})
    for arguments, text in (
        ({"start_line": 8}, "8\t8\n9\t9"),
        ({"end_line": 1}, "1\t1"),
        ({"start_line": 2, "end_line": 3}, "2\t2\n3\t3"),
        ({"start_line": 9, "end_line": 100}, "9\t9"),
    ):
        assert tools.call("repo_read", {"path": "a", **arguments}).text == text


def test_a_file_of_many_lines_is_cut_and_says_where():
    tools = tools_over({"a": b"x\n" * 1000})
    found = lines(tools.call("repo_read", {"path": "a"}))
    assert found[-2:] == [
        "400\tx",
        "[lines 1 to 400 of 1,000; at most 400 lines and 60,000 bytes per call]",
    ]
    found = lines(tools.call("repo_read", {"path": "a", "start_line": 500}))
    assert found[-1].startswith("[lines 500 to 899 of 1,000;")
    assert len(lines(tools.call("repo_read", {"path": "a", "start_line": 601}))) == 400
    assert len(lines(tools.call("repo_read", {"path": "a", "end_line": 400}))) == 400


def test_a_file_of_long_lines_is_cut_by_bytes_and_says_where():
    result = tools_over({"a": (b"x" * 9997 + b"\n") * 10}).call("repo_read", {"path": "a"})
    assert lines(result)[-1].startswith("[lines 1 to 6 of 10; at most 400 lines and 60,000 bytes")
    assert result.original_bytes == 100_000
    assert len(result.text.encode()) < 61_000


def test_one_line_that_is_too_long_is_cut_between_characters_and_says_so():
    data = "中".encode() * 66_666
    result = tools_over({"a": data + b"\nnext"}).call("repo_read", {"path": "a"})
    row, where, cut = lines(result)
    assert row == "1\t" + "中" * 19_999
    assert where.startswith("[lines 1 to 1 of 2;")
    assert cut == "[line 1 cut to fit 60,000 bytes: it has 199,998 bytes]"


@pytest.mark.parametrize("line", [b"x" * 59_999, b"\xff" * 30_000])
def test_a_line_that_is_only_too_long_when_shown_is_cut_and_said_too(line):
    result = tools_over({"a": line}).call("repo_read", {"path": "a"})
    assert f"[line 1 cut to fit 60,000 bytes: it has {len(line):,} bytes]" in lines(result)
    whole = tools_over({"a": b"x" * 59_998}).call("repo_read", {"path": "a"})
    assert lines(whole) == ["1\t" + "x" * 59_998]


@pytest.mark.parametrize("data", [b"a\0b\nc", b"caf\xe9\nc", b"\xff\xd8\xff\nc", b"\xed\xa0\x80"])
def test_what_is_not_text_is_replaced_and_said(data):
    result = tools_over({"a": data}).call("repo_read", {"path": "a"})
    assert lines(result)[-1] == "[not UTF-8 text; what cannot be shown is \ufffd]"
    assert "\0" not in result.text
    json.dumps(result.text, ensure_ascii=False).encode()


def test_text_beside_what_is_not_text_needs_no_note():
    tools = tools_over({"a": b"\xff\nplain \xef\xbf\xbd\n"})
    assert lines(tools.call("repo_read", {"path": "a", "start_line": 2})) == ["2\tplain \ufffd"]


def test_files_at_the_limits_of_size_are_read(tmp_path):
    built("sizes", tmp_path / "repo")
    tools = RepositoryTools(read(tmp_path / "repo"), ALL)
    assert lines(tools.call("repo_read", {"path": "nonl.md", "start_line": 1, "end_line": 1})) == [
        "1\tno newline"
    ]
    assert tools.call("repo_read", {"path": "s200001.md"}).is_error
    assert lines(tools.call("repo_search", {"query": "a\ufffd"}))[0].startswith("[0 matching")


# Search.


def test_a_search_is_literal_and_minds_case():
    tools = tools_over({"a.md": b"One.\none.*\nnone\r\n", "b.md": b"stone\n"})
    assert lines(tools.call("repo_search", {"query": "one"})) == [
        "a.md:2: one.*",
        "a.md:3: none\r",
        "b.md:1: stone",
        "[3 matching lines; searched 2 of 2 paths]",
    ]
    assert lines(tools.call("repo_search", {"query": ".*"}))[0] == "a.md:2: one.*"
    assert lines(tools.call("repo_search", {"query": "one", "prefix": "b"})) == [
        "b.md:1: stone",
        "[1 matching lines; searched 1 of 1 paths]",
    ]
    assert lines(tools.call("repo_search", {"query": "absent"})) == [
        "[0 matching lines; searched 2 of 2 paths]"
    ]


def test_a_line_matches_once_and_lines_are_counted_right():
    tools = tools_over({"a": b"x x x\n\n\nx\nyx"})
    assert lines(tools.call("repo_search", {"query": "x"}))[:-1] == [
        "a:1: x x x",
        "a:4: x",
        "a:5: yx",
    ]


def test_a_search_covers_the_first_500_paths_and_says_so():
    files = {f"{number:04}": b"needle" if number in {499, 500} else b"" for number in range(501)}
    tools = tools_over(files)
    assert lines(tools.call("repo_search", {"query": "needle"})) == [
        "0499:1: needle",
        "[1 matching lines; searched 500 of 501 paths, at most 500 per search]",
    ]
    assert (
        lines(tools.call("repo_search", {"query": "needle", "prefix": "05"}))[0] == "0500:1: needle"
    )


def test_a_search_stops_at_50_lines_and_says_where():
    tools = tools_over({f"{number:04}": b"x\n" * 20 for number in range(600)})
    found = lines(tools.call("repo_search", {"query": "x"}))
    assert len(found) == 51
    assert found[-1] == (
        "[50 matching lines, and there are more; stopped in path 3 of 600,"
        " at most 50 lines and 60,000 bytes per search, at most 500 per search]"
    )
    assert lines(tools_over({"a": b"x\n" * 50}).call("repo_search", {"query": "x"}))[-1] == (
        "[50 matching lines; searched 1 of 1 paths]"
    )


def test_long_lines_are_cut_around_the_match_and_counted():
    text = "é" * 500 + "needle" + "中" * 500
    tools = tools_over(
        {"a": text.encode(), "b": b"needle" + b"x" * 400, "c": b"x" * 400 + b"needle"}
    )
    first, second, third, *notes = lines(tools.call("repo_search", {"query": "needle"}))
    assert first == "a:1: …" + "é" * 100 + "needle" + "中" * 194 + "…"
    assert second == "b:1: needle" + "x" * 294 + "…"
    assert third == "c:1: …" + "x" * 294 + "needle"
    assert notes[1] == "[3 of these lines cut to 300 characters]"


def test_a_match_in_what_is_not_text_is_shown_and_said():
    tools = tools_over({"a": b"\xffneedle\0\n", "b": "é".encode()})
    assert lines(tools.call("repo_search", {"query": "needle"})) == [
        "a:1: \ufffdneedle\ufffd",
        "[1 matching lines; searched 2 of 2 paths]",
        "[not UTF-8 text; what cannot be shown is \ufffd]",
    ]
    assert lines(tools.call("repo_search", {"query": "é"}))[0] == "b:1: é"


def test_matches_with_very_long_names_are_cut_by_bytes_and_said():
    files = {f"{number:02}" + "x" * 2900: b"needle" for number in range(40)}
    result = tools_over(files).call("repo_search", {"query": "needle"})
    found = lines(result)
    assert len(found) == 21
    assert found[-1].startswith("[20 matching lines, and there are more; stopped in path 21 of 40,")
    assert result.original_bytes > 60_000
