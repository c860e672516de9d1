"""What a model passes to a repository tool: checked by type, paths by the name they were given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_studyminimal.protocol.text import one_line

QUERY_CHARACTERS = 1_000


class ArgumentError(Exception):
    """What is wrong with a call, as one line for the model."""


def shown(path: str) -> str:
    """Return the name a model sees: the path itself, or a JSON string where it would be unclear."""
    if path and path.isprintable() and path == path.strip() and not path.startswith('"'):
        return path
    return json.dumps(path)


def meanings(given: str) -> list[str]:
    """Return the paths that a name may stand for; one in quotes is first of all a JSON string."""
    if given.startswith('"'):
        try:
            value = json.loads(given)
        except ValueError:
            value = None
        if isinstance(value, str):
            return [value, given]
    return [given]


def check_arguments(arguments: object, schema: Mapping[str, Any]) -> None:
    """Raise ArgumentError unless the arguments are what a tool's own input schema asks for."""
    if not isinstance(arguments, Mapping):
        raise ArgumentError(f"found {_found(arguments)}, required an object of arguments")
    properties = schema["properties"]
    for name, value in arguments.items():
        if name not in properties:
            known = ", ".join(properties)
            raise ArgumentError(
                f"{one_line(str(name), 80)}: found an unknown argument, required {known}"
            )
        _check_value(name, value, properties[name])
    for name in schema.get("required", ()):
        if name not in arguments:
            raise ArgumentError(f"{name}: found nothing, required this argument")


def _check_value(name: str, value: object, rule: Mapping[str, Any]) -> None:
    if rule["type"] == "integer":
        if type(value) is not int or value < 1:
            raise ArgumentError(f"{name}: found {_found(value)}, required a whole number from 1")
        return
    if not isinstance(value, str):
        raise ArgumentError(f"{name}: found {_found(value)}, required text")
    if name == "query":
        _check_query(value)


def _check_query(query: str) -> None:
    required = f"1 to {QUERY_CHARACTERS:,} characters of Unicode text without a line feed"
    if not query:
        raise ArgumentError(f"query: found nothing, required {required}")
    if len(query) > QUERY_CHARACTERS:
        raise ArgumentError(f"query: found {len(query):,} characters, required {required}")
    if "\n" in query or any("\ud800" <= char <= "\udfff" for char in query):
        raise ArgumentError(f"query: found {_found(query)}, required {required}")


def _found(value: object) -> str:
    return one_line(json.dumps(value, default=lambda other: type(other).__name__), 80)
