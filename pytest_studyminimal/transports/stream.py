"""Lines of JSON on an agent's stdout: bytes in, events out, whatever the locale.

Lines end at 0x0A and nowhere else, text is UTF-8, and a line that is no JSON object is a problem
with a number, never an exception. Numbers with a fraction stay text, so that money stays exact.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from decimal import Decimal

_COST = re.compile(r"[0-9]{1,12}(\.[0-9]{1,40})?([eE][-+]?[0-9]{1,2})?", re.ASCII)
_LARGEST_COUNT = 10**12
_LARGEST_COST_USD = 10**9
_BOM = b"\xef\xbb\xbf"


class Figure(str):
    """A number with a fraction or an exponent, as it was written."""

    __slots__ = ()


class EventError(ValueError):
    """A line that is no JSON object in UTF-8."""


def event_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line. Raises EventError, which quotes nothing."""
    try:
        event = json.loads(line.decode("utf-8"), parse_float=Figure, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise EventError("not a JSON object") from None
    if not isinstance(event, dict):
        raise EventError("not a JSON object")
    return event


def _no_constant(name: str) -> None:
    raise ValueError(name)


def cost_of(value: object) -> Decimal | None:
    """Return a cost in dollars, exactly as written; None for all that is no finite amount of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, Figure)):
        return None
    text = str(value) if not isinstance(value, int) or abs(value) < _LARGEST_COST_USD else ""
    if not _COST.fullmatch(text):
        return None
    amount = money.parse_exact(text)
    return amount if amount <= _LARGEST_COST_USD else None


def count_of(value: object) -> int | None:
    """Return a count of 0 or more; None for all else, also for true and for 1.0."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST_COUNT else None


def word_of(value: object, limit: int = 128) -> str | None:
    """Return a text as one line, None for all that is no text."""
    return one_line(value, limit) if isinstance(value, str) else None


class Lines:
    """Splits what is fed at 0x0A, keeps the first `most_bytes` and says whether there was more.

    Beyond the cap lines still come out, since a cost may stand in one; only a single line of more
    than the cap is dropped.
    """

    def __init__(self, most_bytes: int) -> None:
        self.kept = bytearray()
        self.cut = False
        self._most = most_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._first = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take some bytes and yield the lines that they complete."""
        room = self._most - len(self.kept)
        self.kept += data[: max(0, room)]
        self.cut = self.cut or len(data) > room
        *complete, rest = data.split(b"\n")
        for piece in complete:
            self._add(piece)
            yield self._line()
        self._add(rest)

    def keep(self, line: bytes) -> None:
        """Keep one more line beyond the cap, up to twice the cap in all."""
        if len(self.kept) + len(line) <= 2 * self._most:
            self.kept += b"\n" + line + b"\n"

    def end(self) -> Iterator[bytes]:
        """Yield what stands behind the last 0x0A."""
        if self._parts:
            yield self._line()

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._most:
            self._parts = []
        elif piece:
            self._parts.append(piece)

    def _line(self) -> bytes:
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        if self._first:
            line = line.removeprefix(_BOM)
            self._first = False
        return line
