"""Replies of the Messages API as values: nothing is believed unseen."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_studyminimal.protocol.records import Usage

_DEEPEST = 64
_MODEL = re.compile(r"[!-~]{1,200}", re.ASCII)
_WORD = re.compile(r"[a-z_]{1,40}", re.ASCII)


class WireError(ValueError):
    """A reply that breaks the provider's own rules; the message is one public line."""


@dataclass(frozen=True)
class ToolUse:
    """A call that the model requested."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """A well-formed reply; `stop_reason` is None where none was given that could be shown."""

    model: str
    stop_reason: str | None
    content: tuple[dict[str, Any], ...]

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        """The calls requested, in order."""
        return tuple(
            ToolUse(block["id"], block["name"], block["input"])
            for block in self.content
            if block["type"] == "tool_use"
        )

    @property
    def text(self) -> str:
        """The text blocks that are not blank, joined by an empty line; thinking is no text."""
        texts = [block["text"] for block in self.content if block["type"] == "text"]
        answer: str = clean("\n\n".join(text for text in texts if text.strip()))
        return answer


def parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`.

    Raises WireError for all else: other encodings, NaN, infinities, a key twice, deep nesting.
    """
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_once,
            parse_float=_finite,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError):
        raise WireError("the response is not valid JSON") from None
    if not isinstance(value, dict):
        raise WireError("the response is not a JSON object")
    if _deeper_than(value, _DEEPEST):
        raise WireError(f"the response is nested more than {_DEEPEST} levels deep")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key twice in one object")
    return table


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number beyond all floats")
    return number


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _deeper_than(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return any(isinstance(value, (dict, list)) for value in layer)


_Tokens = Annotated[int, Field(ge=0, le=10**12)]


class _CacheCreation(BaseModel):
    model_config = ConfigDict(strict=True)

    ephemeral_5m_input_tokens: _Tokens | None = None
    ephemeral_1h_input_tokens: _Tokens | None = None


class _Usage(BaseModel):
    model_config = ConfigDict(strict=True)

    input_tokens: _Tokens
    output_tokens: _Tokens
    cache_read_input_tokens: _Tokens | None = None
    cache_creation_input_tokens: _Tokens | None = None
    cache_creation: _CacheCreation | None = None


def usage_of(document: dict[str, Any]) -> Usage | None:
    """Return the usage of a reply, None where it is missing or invalid.

    Cache writes that are not attributed to five minutes are priced as the dearer hour.
    """
    try:
        seen = _Usage.model_validate(document.get("usage"))
    except ValidationError:
        return None
    if not _possible(document, seen):
        return None
    split = seen.cache_creation or _CacheCreation()
    written = seen.cache_creation_input_tokens or 0
    five_minutes = split.ephemeral_5m_input_tokens or 0
    if five_minutes + (split.ephemeral_1h_input_tokens or 0) > written:
        return None
    return Usage(
        input_tokens=seen.input_tokens,
        output_tokens=seen.output_tokens,
        cache_read_tokens=seen.cache_read_input_tokens or 0,
        cache_write_5m_tokens=five_minutes,
        cache_write_1h_tokens=written - five_minutes,
    )


def _possible(document: dict[str, Any], seen: _Usage) -> bool:
    # No prompt is free of tokens, no content comes from none, and no server tool was asked for.
    cached = (seen.cache_read_input_tokens or 0) + (seen.cache_creation_input_tokens or 0)
    server_tools = document["usage"].get("server_tool_use") or {}
    priced_apart = isinstance(server_tools, dict) and any(server_tools.values())
    said_nothing = seen.output_tokens > 0 or not document.get("content")
    return seen.input_tokens + cached > 0 and said_nothing and not priced_apart


def reply_of(document: dict[str, Any]) -> Reply:
    """Return the reply in `document`; WireError where its shape is not an assistant's message."""
    model, content = document.get("model"), document.get("content")
    if document.get("type") != "message" or document.get("role") != "assistant":
        raise WireError("the response is not an assistant's message")
    if not isinstance(model, str) or not _MODEL.fullmatch(model):
        raise WireError("the response names no model")
    if not isinstance(content, list) or not all(map(_well_formed, content)):
        raise WireError("the response has malformed content")
    return Reply(model, _word(document.get("stop_reason")), tuple(content))


def _well_formed(block: object) -> bool:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return False
    if block["type"] == "text":
        return isinstance(block.get("text"), str)
    if block["type"] == "tool_use":
        named = all(
            isinstance(block.get(key), str) and block[key].strip() for key in ("id", "name")
        )
        return named and isinstance(block.get("input"), dict)
    return True


def error_type(body: bytes) -> str | None:
    """Return the type of an API error such as `overloaded_error`; no other word of it is public."""
    try:
        error = parse(body).get("error")
    except WireError:
        return None
    return _word(error.get("type")) if isinstance(error, dict) else None


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def clean(value: Any) -> Any:
    """Return a JSON value whose texts are valid UTF-8, lone surrogates replaced."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, dict):
        return {clean(name): clean(item) for name, item in value.items()}
    return value
