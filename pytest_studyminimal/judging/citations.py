"""Citations of an answer, checked by program against the corpus at its pin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CITED = re.compile(
    r"(?<![\w/])(?P<path>(?:[\w@+~.-]+/)*[\w@+~.-]*\w)"
    r"(?::(?:L|line )?|#L|,? \(?lines? )(?P<first>\d{1,7})(?:\s?(?:-|\u2013|to)\s?L?(?P<last>\d{1,7}))?"
)
_QUOTED = re.compile(r"\"([^\"\n]{12,500})\"|\u201c([^\u201d\n]{12,500})\u201d|`([^`\n]{12,500})`")
"""Short ones are names and emphasis, and say nothing about a line."""
_MOST = 200
_CONTEXT_LINES = 5


@dataclass(frozen=True)
class Citation:
    """A place that an answer names, and what the pin says of it.

    `found` is ok, no file, ambiguous, no line, or other words: what is quoted beside it is not there.
    """

    path: str
    first: int
    last: int
    found: str
    text: str = ""

    def described(self) -> dict[str, object]:
        """Return the citation and its check as plain JSON."""
        return {"path": self.path, "first": self.first, "last": self.last, "found": self.found}


def citations(answer: str, files: Mapping[str, bytes]) -> tuple[Citation, ...]:
    """Return every `path:line` of an answer, each once, held against the files at the pin.

    A path may be written from any of its folders on, where only one file ends so. `text` are the
    cited lines with a few around them.
    """
    found: dict[tuple[str, int, int], Citation] = {}
    for match in _CITED.finditer(answer):
        written, first = match["path"], int(match["first"])
        if len(found) >= _MOST or not re.search(r"[./]", written):
            continue
        last = int(match["last"] or first)
        key = (written, first, last)
        found.setdefault(key, _checked(written, first, last, files, _quoted(answer, match)))
    return tuple(found.values())


def _quoted(answer: str, match: re.Match[str]) -> list[str]:
    """Return what the answer quotes in the line of a citation, between it and the next one."""
    # The mark that closes a citation opens no quotation.
    rest = answer[match.end() : match.end() + 2_000].partition("\n")[0].lstrip('`"\u201d')
    following = _CITED.search(rest)
    told = rest[: following.start()] if following else rest
    return [one for groups in _QUOTED.findall(told) for one in groups if _plain(one)]


def _plain(text: str) -> str:
    return " ".join(text.split())


def _checked(
    written: str, first: int, last: int, files: Mapping[str, bytes], quoted: Sequence[str]
) -> Citation:
    written = written.removeprefix("./")
    matching = (
        [written] if written in files else [path for path in files if path.endswith("/" + written)]
    )
    shown = one_line(written, 300)
    if len(matching) != 1:
        return Citation(shown, first, last, "ambiguous" if matching else "no file")
    lines = files[matching[0]].decode("utf-8", "replace").split("\n")
    path = one_line(matching[0], 300)
    if not 1 <= first <= last <= len(lines):
        return Citation(path, first, last, "no line")
    around = lines[max(0, first - 1 - _CONTEXT_LINES) : last + _CONTEXT_LINES]
    there = _plain("\n".join(around))
    found = "ok" if all(_plain(one) in there for one in quoted) else "other words"
    return Citation(path, first, last, found, "\n".join(around[:200]))
