"""What a server was given and may repeat: its variables' values are hidden in public lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN = "(hidden)"
_SHORTEST = 4


class Hider:
    """Replaces values of at least 4 characters by `(hidden)`, also one that the text's ends cut.

    Apply it to what a server said before that is quoted, escaped or shortened; never to results.
    """

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            if len(text) >= _SHORTEST and text in form:
                return HIDDEN
            text = text.replace(form, HIDDEN)
        for form in self._forms:
            text = _without_ends(text, form)
        return text


class Scrubber:
    """Replaces whole values by `(hidden)` and nothing else, so that what is judged stays as it was."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= _SHORTEST}
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text


def _forms(value: str) -> tuple[str, ...]:
    quoted = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value))
    return (value, value.strip(), *(text[1:-1] for text in quoted))


def _without_ends(text: str, form: str) -> str:
    for size in range(min(len(form) - 1, len(text)), _SHORTEST - 1, -1):
        if text.endswith(form[:size]):
            text = text[:-size] + HIDDEN
        if text.startswith(form[-size:]):
            text = HIDDEN + text[size:]
    return text
