"""Names and schemas on the wire: what a model provider accepts of what an MCP server offers."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_NAME = 64
DEEPEST_SCHEMA = 32
LARGEST_SCHEMA_BYTES = 65_536

_TOP_LEVEL = ("anyOf", "oneOf", "allOf", "not", "if", "enum", "$ref", "$dynamicRef")
# The Messages API checks the names at the top level only (aws-solutions-library-samples/
# accelerated-intelligent-document-processing-on-aws#709, read on 2026-11-30).
_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def wire_name(exact: str) -> str:
    """Return the name under which a model sees the tool `exact`: `[A-Za-z0-9_-]{1,64}`.

    Other characters become `_`; a longer name is cut and ends in 6 hex digits of its SHA-256.
    """
    if not exact:
        raise ServerError("tools", "found a tool with an empty name, required a name")
    name = re.sub(r"[^A-Za-z0-9_-]", "_", exact)
    if len(name) <= LONGEST_NAME:
        return name
    mark = hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 7]}_{mark}"


def wire_map(
    names: Iterable[tuple[str, str]], reserved: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """Return wire name → (owner, exact name) for (owner, exact name) pairs, in their order.

    Raises ServerError (`tools`) that names both where two, or one and a reserved name, meet.
    """
    taken = set(reserved)
    found: dict[str, tuple[str, str]] = {}
    for owner, exact in names:
        wire = wire_name(exact)
        if wire in taken:
            raise _collision(wire, f"{exact!r} of {owner}", "a repository tool")
        if wire in found:
            other_owner, other = found[wire]
            raise _collision(wire, f"{exact!r} of {owner}", f"{other!r} of {other_owner}")
        found[wire] = (owner, exact)
    return found


def _collision(wire: str, one: str, other: str) -> ServerError:
    return ServerError(
        "tools", f"found {one} and {other} both named {wire} on the wire, required distinct names"
    )


def schema_problem(schema: Any) -> str | None:
    """Return what a Messages API provider would refuse about an input schema, None where nothing.

    The line names the keyword. A schema is never rewritten: a model sees what the server said.
    """
    if not isinstance(schema, dict):
        return "the schema is not an object"
    if schema.get("type") != "object":
        return f'"type" is {_short(schema.get("type"))} at the top level, not "object"'
    for keyword in _TOP_LEVEL:
        if keyword in schema:
            return f'"{keyword}" at the top level'
    return _properties_problem(schema) or _size_problem(schema)


def _properties_problem(schema: dict[str, Any]) -> str | None:
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return '"properties" is not an object'
    for name, value in properties.items():
        if not _PROPERTY_NAME.fullmatch(name):
            return f'"properties" has the name {_short(name)}, not [a-zA-Z0-9_.-]{{1,64}}'
        if not isinstance(value, (dict, bool)):
            return f'"properties" has no schema for {_short(name)}'
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        return '"required" is not a list of names'
    return None


def _size_problem(schema: dict[str, Any]) -> str | None:
    level: list[Any] = [schema]
    for _ in range(DEEPEST_SCHEMA):
        level = [child for value in level for child in _children(value)]
        if not level:
            break
    else:
        return f"the schema is nested deeper than {DEEPEST_SCHEMA} levels"
    try:
        size = len(json.dumps(schema, allow_nan=False).encode())
    except ValueError:
        return "the schema holds NaN or Infinity"
    return (
        f"the schema has {size} bytes, above {LARGEST_SCHEMA_BYTES}"
        if size > LARGEST_SCHEMA_BYTES
        else None
    )


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _short(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else text[:80] + "…"
