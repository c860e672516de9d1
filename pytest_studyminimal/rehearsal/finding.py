"""Keywords in questions, places in search results, lines in what was read."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_studyminimal.rehearsal.conversation import Step

_STOP_WORDS = frozenset(
    """
    about above after again against all also and any are because been before being between both but
    can cannot cite cited citation citations come comes could did does doing done down each every
    exactly exist exists explain explains file files find first for from give gives given had has
    have having here how into its itself just keep kept know last less line lines list made make
    makes many may might more most much must name named names need needs never none nor not now off
    once one only other our out over own path paths please question repository said same say says
    should show shows since some source sources still such take takes tell than that the their them
    then there these they this those through too two under until use used uses using very was were
    what when where whether which while who whom whose why will with within without would you your
    """.split()  # noqa: SIM905 (as a list it would fill four pages)
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[./-][A-Za-z0-9_]+)*")
_IDENTIFIER = re.compile(r"[a-z][A-Z]|[_./0-9]")
_AT_START = re.compile(
    r"\s*(?:[-*•]\s+)?(?P<path>[^\s:]+|[^\s:][^:]*(?=:\d+:)):(?P<line>\d+)(?:[:\s].*|$)"
)
_INLINE = re.compile(r"(?P<path>[\w@+~-][\w@+~./-]*?)(?::|#L)(?P<line>\d+)(?![\w.])")
_BARE = re.compile(
    r"(?<![\w/:.])(?P<path>(?:[\w@+~.-]+/)*[\w@+~.-]*\.[A-Za-z]\w{0,7})(?P<line>)(?![\w/])"
)
_NUMBERED = re.compile(r"\s*(?P<number>\d+)(?:[:\t|→]|: )[ ]?(?P<line>.*)")
_PATH_KEYS = ("path", "file", "filePath", "file_path", "uri", "sourcePath", "source")
_LINE_KEYS = ("line", "startLine", "start_line", "lineNumber")
_LONGEST_QUOTE = 160
_LONGEST_LINE = 400
_MOST_LINES = 2000


def keywords_of(question: str) -> list[str]:
    """Return the words worth searching for: identifiers first, then the rarest and longest."""
    words = [word for word in _WORD.findall(question) if len(word) > 2]
    words = [word for word in words if word.lower() not in _STOP_WORDS]
    times = Counter(word.lower() for word in words)
    first: dict[str, str] = {}
    for word in words:
        first.setdefault(word.lower(), word)

    def worth(word: str) -> tuple[bool, int, int]:
        return not _IDENTIFIER.search(word), times[word.lower()], -len(word)

    return sorted(first.values(), key=worth)


def shared(text: str, keywords: list[str]) -> int:
    """Return how many of the keywords stand in `text`, in any case."""
    lowered = text.lower()
    return sum(word.lower() in lowered for word in keywords)


@dataclass(frozen=True)
class Hit:
    """A place that a search or a listing named; `line` is None where only the file was named."""

    path: str
    line: int | None
    context: str
    found_by: str

    @property
    def place(self) -> str:
        """`path:line`, or the path alone."""
        return self.path if self.line is None else f"{self.path}:{self.line}"

    def position(self) -> tuple[str, int]:
        """Return what orders hits by path and line."""
        return self.path, self.line or 0

    def score(self, keywords: list[str]) -> tuple[int, bool]:
        """Return what speaks for this hit: shared keywords, then a known line."""
        return shared(f"{self.path} {self.context}", keywords), self.line is not None


def hits_in(text: str, found_by: str) -> list[Hit]:
    """Return the places named in a result: JSON with paths, else `path:line`, else paths alone."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, (dict, list)):
        structured = [Hit(path, line, told, found_by) for path, line, told in _named(document, 0)]
        if structured:
            return structured
    # Bounded, since patterns take long on minified lines.
    lines = [line[:_LONGEST_LINE] for line in text.splitlines()[:_MOST_LINES]]
    for pattern in (_AT_START, _INLINE, _BARE):
        hits = [
            Hit(
                _plain(match["path"]),
                int(match["line"][:9]) if match["line"] else None,
                line,
                found_by,
            )
            for line in lines
            for match in pattern.finditer(line)
            if _is_path(match["path"], named=pattern is _AT_START and match.start() == 0)
        ]
        if hits:
            return hits
    return []


def _plain(path: str) -> str:
    return path.strip().removeprefix("./")


def _is_path(text: str, *, named: bool) -> bool:
    # A name without dot and slash, such as Makefile, is a path only where a path is expected.
    if not re.search(r"[A-Za-z]", text):
        return False
    return re.search(r"[./]", text) is not None or (named and not re.search(r"\s", text))


def _named(value: Any, depth: int) -> Iterator[tuple[str, int | None, str]]:
    if depth > 20 or not isinstance(value, (dict, list)):
        return
    if isinstance(value, dict):
        named = [(key, value[key]) for key in _PATH_KEYS if isinstance(value.get(key), str)]
        paths = [path for key, path in named if _is_path(path, named=key in {"path", "file"})]
        lines = [value[key] for key in _LINE_KEYS if type(value.get(key)) is int]
        if paths:
            told = json.dumps(value, ensure_ascii=False)[:2000]
            yield _plain(paths[0]), (lines[0] if lines else None), told
    for inner in value.values() if isinstance(value, dict) else value:
        yield from _named(inner, depth + 1)


def numbered_lines(step: Step) -> list[tuple[int, str]]:
    """Return the lines of a read with their numbers, counted from its start where none are given."""
    lines = step.text.splitlines()
    matches = [_NUMBERED.fullmatch(line) for line in lines]
    if sum(match is not None for match in matches) * 2 > len(lines):
        return [(int(match["number"][:9]), match["line"]) for match in matches if match]
    start = step.arguments.get("start_line", step.arguments.get("offset", 1))
    return list(enumerate(lines, start if isinstance(start, int) else 1))


def best_lines(
    lines: list[tuple[int, str]], keywords: list[str], most: int
) -> list[tuple[int, str]]:
    """Return the lines that share most keywords, in their order; never none where there is text."""
    worth = [(number, line.strip()) for number, line in lines if line.strip()]
    ranked = sorted(worth, key=lambda pair: -shared(pair[1], keywords))
    sharing = [pair for pair in ranked if shared(pair[1], keywords)]
    chosen = sorted((sharing or ranked)[:most])
    return [(number, line[:_LONGEST_QUOTE]) for number, line in chosen]
