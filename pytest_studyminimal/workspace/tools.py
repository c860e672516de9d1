"""The repository tools of an arm: list, read and search the files of a corpus, within bounds.

A result that was cut says so in its own text, with numbers, so that no absence is taken for a fact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from pytest_studyminimal.protocol.records import ToolDefinition, ToolResult
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.workspace.arguments import (
    QUERY_CHARACTERS,
    ArgumentError,
    check_arguments,
    meanings,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import JsonValue

    from pytest_studyminimal.workspace.corpus import Corpus

LISTED_PATHS = 200
READ_LINES = 400
SEARCHED_PATHS = 500
SEARCH_MATCHES = 50
MATCH_CHARACTERS = 300
# Below the 100,000 bytes that an attempt allows a tool by default.
RESULT_BYTES = 60_000

Name = Literal["list", "read", "search"]

_PATH = "A path as repo_list gives it; unusual names are given as JSON strings in quotes."
_PREFIX: JsonValue = {"type": "string", "description": "Only paths that start with this text."}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_DEFINITIONS: Mapping[Name, ToolDefinition] = {
    "list": ToolDefinition(
        name="repo_list",
        description=f"List file paths of the repository, at most {LISTED_PATHS}.",
        input_schema={
            "type": "object",
            "properties": {"prefix": _PREFIX},
            "additionalProperties": False,
        },
    ),
    "read": ToolDefinition(
        name="repo_read",
        description=f"Read a file with line numbers, at most {READ_LINES} lines per call.",
        input_schema={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": _PATH},
                "start_line": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "First line, 1 by default.",
                },
                "end_line": {"type": "integer", "minimum": 1, "description": "Last line."},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    ),
    "search": ToolDefinition(
        name="repo_search",
        description=(
            "Search file contents for literal, case-sensitive text on one line. Searches the first"
            f" {SEARCHED_PATHS} paths and gives at most {SEARCH_MATCHES} matching lines."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1, "maxLength": QUERY_CHARACTERS},
                "prefix": _PREFIX,
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    ),
}


@dataclass(frozen=True)
class _Hit:
    """A matching line: its file, that file's place in the search from 1, and its number."""

    path: str
    place: int
    number: int
    line: bytes


class RepositoryTools:
    """The repository tools that a scenario offers over one corpus, in a fixed order."""

    def __init__(self, corpus: Corpus, names: tuple[Name, ...]) -> None:
        self._corpus = corpus
        tools = {"list": self._list, "read": self._read, "search": self._search}
        offered = [(_DEFINITIONS[name], tools[name]) for name in _DEFINITIONS if name in names]
        self._tools = {definition.name: (definition, tool) for definition, tool in offered}

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What a model is offered, among `repo_list`, `repo_read` and `repo_search`."""
        return tuple(definition for definition, _ in self._tools.values())

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call; whatever is wrong with it is an error result of one line."""
        if name not in self._tools:
            known = ", ".join(self._tools) or "no tool"
            return _error(f"found the tool {one_line(str(name), 80)}, required one of {known}")
        definition, tool = self._tools[name]
        try:
            check_arguments(arguments, definition.input_schema)
            return tool(arguments)
        except ArgumentError as error:
            return _error(str(error))

    def _list(self, arguments: Mapping[str, Any]) -> ToolResult:
        paths = self._paths(arguments)
        rows, original_bytes = _fit([shown(path) for path in paths[:LISTED_PATHS]])
        notes = [] if paths else ["0 paths"]
        if len(rows) < len(paths):
            limit = f"at most {LISTED_PATHS} paths and {RESULT_BYTES:,} bytes per call"
            notes.append(f"{len(rows):,} of {len(paths):,} paths; {limit}")
        return _result(rows, notes, original_bytes)

    def _read(self, arguments: Mapping[str, Any]) -> ToolResult:
        lines = _lines(self._corpus.files[self._path(arguments["path"])])
        if not lines:
            return _result([], ["0 lines: the file is empty"], None)
        start, end = _range(arguments, len(lines))
        numbered = zip(range(start, end + 1), lines[start - 1 : end], strict=True)
        chosen = list(islice(numbered, READ_LINES))
        wanted = [f"{number}\t{_text(line)}" for number, line in chosen]
        rows, original_bytes = _fit(wanted)
        notes, last = [], start + len(rows) - 1
        if last < end:
            limit = f"at most {READ_LINES} lines and {RESULT_BYTES:,} bytes per call"
            notes.append(f"lines {start:,} to {last:,} of {len(lines):,}; {limit}")
        if rows[0] != wanted[0]:
            size = f"it has {len(lines[start - 1]):,} bytes"
            notes.append(f"line {start} cut to fit {RESULT_BYTES:,} bytes: {size}")
        if any(_is_damaged(line) for _, line in chosen[: len(rows)]):
            notes.append(f"not UTF-8 text; what cannot be shown is {_REPLACEMENT}")
        return _result(rows, notes, original_bytes)

    def _search(self, arguments: Mapping[str, Any]) -> ToolResult:
        query = arguments["query"]
        paths = self._paths(arguments)
        hits = list(islice(self._hits(paths[:SEARCHED_PATHS], query.encode()), SEARCH_MATCHES + 1))
        windows = [(hit, *_window(_text(hit.line), query)) for hit in hits[:SEARCH_MATCHES]]
        rows, original_bytes = _fit(
            [f"{shown(hit.path)}:{hit.number}: {text}" for hit, text, _ in windows]
        )
        notes = [_searched(hits, len(rows), len(paths))]
        cut = sum(is_cut for _, _, is_cut in windows[: len(rows)])
        if cut:
            notes.append(f"{cut} of these lines cut to {MATCH_CHARACTERS} characters")
        if any(_is_damaged(hit.line) for hit in hits[: len(rows)]):
            notes.append(f"not UTF-8 text; what cannot be shown is {_REPLACEMENT}")
        return _result(rows, notes, original_bytes)

    def _hits(self, paths: list[str], query: bytes) -> Iterator[_Hit]:
        for place, path in enumerate(paths, 1):
            data = self._corpus.files[path]
            number, counted = 1, 0
            position = data.find(query)
            while position != -1:
                number += data.count(b"\n", counted, position)
                counted = position
                start = data.rfind(b"\n", 0, position) + 1
                end = data.find(b"\n", position)
                end = len(data) if end == -1 else end
                yield _Hit(path, place, number, data[start:end])
                position = data.find(query, end)

    def _paths(self, arguments: Mapping[str, Any]) -> list[str]:
        given = arguments.get("prefix", "")
        prefixes = tuple(meanings(given))
        return [path for path in self._corpus.files if path.startswith(prefixes)]

    def _path(self, given: str) -> str:
        for path in meanings(given):
            if path in self._corpus.files:
                return path
        found = one_line(shown(given), 200)
        raise ArgumentError(f"path: found no file {found}, required a path as repo_list gives it")


def _error(line: str) -> ToolResult:
    return ToolResult(text=one_line(line, 500), is_error=True)


def _range(arguments: Mapping[str, Any], count: int) -> tuple[int, int]:
    start = arguments.get("start_line", 1)
    end = arguments.get("end_line", max(start, count))
    if start > count:
        required = f"at most {count}, the number of lines"
        raise ArgumentError(f"start_line: found {start}, required {required}")
    if end < start:
        raise ArgumentError(f"end_line: found {end}, required at least {start}, the start_line")
    return start, min(end, count)


def _searched(hits: list[_Hit], rows: int, paths: int) -> str:
    """Say how far a search went and what stopped it."""
    reached = min(paths, SEARCHED_PATHS)
    limit = f", at most {SEARCHED_PATHS} per search" if paths > SEARCHED_PATHS else ""
    if rows == len(hits):
        return f"{rows} matching lines; searched {reached:,} of {paths:,} paths{limit}"
    reached = hits[rows].place
    return (
        f"{rows} matching lines, and there are more; stopped in path {reached:,} of {paths:,},"
        f" at most {SEARCH_MATCHES} lines and {RESULT_BYTES:,} bytes per search{limit}"
    )


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def _text(line: bytes) -> str:
    # A NUL is valid UTF-8, but some providers refuse a request that holds one.
    return line.decode("utf-8", "replace").replace("\0", _REPLACEMENT)


def _is_damaged(line: bytes) -> bool:
    try:
        return "\0" in line.decode("utf-8")
    except UnicodeDecodeError:
        return True


def _window(text: str, query: str) -> tuple[str, bool]:
    """Return the part of a line around the query, and whether anything was cut."""
    if len(text) <= MATCH_CHARACTERS:
        return text, False
    start = max(0, min(text.find(query) - MATCH_CHARACTERS // 3, len(text) - MATCH_CHARACTERS))
    end = start + MATCH_CHARACTERS
    return "…" * (start > 0) + text[start:end] + "…" * (end < len(text)), True


def _fit(rows: list[str]) -> tuple[list[str], int | None]:
    """Return whole rows up to the bound in bytes, and the bytes of all where some are left out.

    A first row that alone is too long is cut.
    """
    whole = "\n".join(rows).encode()
    if len(whole) <= RESULT_BYTES:
        return rows, None
    cut = whole[: RESULT_BYTES + 1]
    kept = cut[: cut.rfind(b"\n")] if b"\n" in cut else cut[:RESULT_BYTES]
    return kept.decode("utf-8", "ignore").split("\n"), len(whole)


def _result(rows: list[str], notes: list[str], original_bytes: int | None) -> ToolResult:
    text = "\n".join([*rows, *(f"[{note}]" for note in notes)])
    return ToolResult(text=text, original_bytes=original_bytes)
