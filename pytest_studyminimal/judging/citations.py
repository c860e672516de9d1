"""Citations of an answer, checked by program against the corpus at its pin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_CITED = re.compile(
    r"(?<![\w/])(?P<path>(?:[\w@+~.-]+/)*[\w@+~.-]*\w)"
    r"(?::(?:L|line )?|#L|,? \(?lines? )(?P<first>\d{1,7})(?:\s?(?:-|\u2013|to)\s?L?(?P<last>\d{1,7}))?"
)
_MOST = 200
_CONTEXT_LINES = 5


@dataclass(frozen=True)
class Citation:
    """A place that an answer names, and what the pin says of it: ok, no file, ambiguous or no line."""

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
        found.setdefault(key, _checked(written, first, last, files))
    return tuple(found.values())


def _checked(written: str, first: int, last: int, files: Mapping[str, bytes]) -> Citation:
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
    return Citation(path, first, last, "ok", "\n".join(around[:200]))
