"""What a model found wrong with a file, as one line: the place, what was found, what was required."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNNAMED = {"[key]", "[number]", "[names]"}
"""Parts of pydantic's locations that are no part of a file."""

_NEVER_QUOTED = {"base_url", "env", "key", "question", "system"}
"""Where a key was pasted by mistake, or a prompt stands."""

_PATTERNS = {
    r"^[a-z0-9]+(-[a-z0-9]+)*$": "an id: lower-case words joined by single hyphens, such as docs-mcp",
    r"^([0-9a-f]{40}|[0-9a-f]{64})$": "a full commit: 40 or 64 lower-case hexadecimal digits",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable",
}
_BOUNDS = {
    "too_short": "{min_length} or more entries",
    "string_too_short": "{min_length} or more characters",
    "string_too_long": "at most {max_length} characters",
    "greater_than_equal": "a number of at least {ge}",
    "less_than_equal": "a number of at most {le}",
}


def describe(error: ValidationError, model: type[BaseModel], *, show_found: bool = True) -> str:
    """Return the first finding of `error` as `place: found …, required …`, and how many more there are.

    `show_found=False` leaves out the value and every unknown name, for files whose content is private.
    """
    findings = error.errors(include_url=False)
    first = findings[0]
    loc, kind = first["loc"], first["type"]
    if kind == "extra_forbidden":
        known = ", ".join(_known_keys(model, loc[:-1]))
        place = _place(loc if show_found else loc[:-1])
        line = f"{place}: found an unknown key, required one of {known}"
    elif kind == "missing":
        line = f"{_place(loc)}: found nothing, required this key"
    else:
        place = _place(loc[:-2] if loc[-1:] == ("[key]",) and not show_found else loc)
        found = _found(first) if show_found else "another value"
        line = f"{place}: found {found}, required {_required(first)}"
    more = len(findings) - 1
    return f"{line} (and {more} more)" if more else line


def shown(value: Any) -> str:
    """Return a value of a file as a message may quote it: short, escaped, on one line."""
    if isinstance(value, dict) and value:
        return f"a table of {one_line(', '.join(value), 80)}"
    text = one_line(json.dumps(value, ensure_ascii=True, default=str), 10_000)
    return text if len(text) <= 80 else text[:60] + f"… ({len(text)} characters)"


def _place(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in _UNNAMED:
            text += f".{part}" if text else part
    return one_line(text) or "the top level"


def _found(finding: Any) -> str:
    value = finding["input"]
    if isinstance(value, str) and not _NEVER_QUOTED.isdisjoint(finding["loc"]):
        return f"text of {len(value)} characters"
    return shown(value)


def _required(finding: Any) -> str:
    context = finding.get("ctx") or {}
    kind = finding["type"]
    if kind == "value_error":
        return str(context["error"])
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"text that matches {context['pattern']}")
    if kind == "literal_error":
        return str(context["expected"]).replace("'", '"')
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    return finding["msg"].removeprefix("Input should be ").lower()  # type: ignore[no-any-return]


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            fields = {(field.alias or name): field for name, field in current.model_fields.items()}
            current = fields[str(part)].annotation if str(part) in fields else None
        else:
            # Below a dict or a tuple the part is a key or an index: go to the model inside.
            current = next((arg for arg in _models_in(current)), None)
            continue
        models = list(_models_in(current))
        if models and not _is_container(current):
            current = models[0]
    if not (isinstance(current, type) and issubclass(current, BaseModel)):
        current = next(_models_in(current), model)
    return sorted((field.alias or name) for name, field in current.model_fields.items())


def _is_container(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in {dict, tuple}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
