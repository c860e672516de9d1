"""What the Messages API refuses, so that a request that would fail for money fails for nothing."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

_KNOWN = frozenset(
    {
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "service_tier",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
_COMBINERS = ("oneOf", "allOf", "anyOf")
_MOST_MARKS = 4


class InvalidRequestError(ValueError):
    """The request breaks a rule of the API; the message is the API's answer."""


def check(request: Any, *, beta: bool = False) -> None:
    """Raise InvalidRequestError where the real API would answer 400.

    With `beta`, which a header of the request asks for, fields that are not known here pass, and
    messages of the system may follow those of the user.
    """
    _require(isinstance(request, dict), "The request body is not valid JSON: expected an object")
    _check_top_level(request, beta=beta)
    _check_tools(request.get("tools", []))
    messages = _without_betas(request["messages"]) if beta else request["messages"]
    _check_messages(messages, tools_defined=bool(request.get("tools")))
    _check_marks(request)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidRequestError(message)


def _check_top_level(request: dict[str, Any], *, beta: bool) -> None:
    for name in ("model", "max_tokens", "messages"):
        _require(name in request, f"{name}: Field required")
    for name in request:
        _require(beta or name in _KNOWN, f"{name}: Extra inputs are not permitted")
    _require(_is_text(request["model"]), "model: String should have at least 1 character")
    limit = request["max_tokens"]
    _require(type(limit) is int and limit > 0, "max_tokens: Input should be greater than 0")
    heat = request.get("temperature", 1)
    _require(type(heat) in {int, float} and 0 <= heat <= 1, "temperature: range: 0..1")
    _require(type(request.get("stream", False)) is bool, "stream: Input should be a valid boolean")
    if "system" in request:
        _check_content(request["system"], "system", only=("text",))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _check_tools(tools: Any) -> None:
    _require(isinstance(tools, list), "tools: Input should be a valid list")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools.{index}.custom")
    names = [tool["name"] for tool in tools]
    _require(len(set(names)) == len(names), "tools: Tool names must be unique.")


def _check_tool(tool: Any, place: str) -> None:
    _require(isinstance(tool, dict), f"{place}: Input should be an object")
    name, schema = tool.get("name"), tool.get("input_schema")
    _require(
        isinstance(name, str) and _TOOL_NAME.fullmatch(name) is not None,
        f"{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
    )
    _require(isinstance(tool.get("description", ""), str), f"{place}.description: not a string")
    _require(isinstance(schema, dict), f"{place}.input_schema: Field required")
    assert isinstance(schema, dict)
    _require(schema.get("type") == "object", f"{place}.input_schema.type: Input should be 'object'")
    _require(
        not any(word in schema for word in _COMBINERS),
        f"{place}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
    )


def _without_betas(messages: Any) -> Any:
    # What is left keeps the plain rules: turns that alternate and have nothing but their content.
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        return messages
    for index, message in enumerate(messages):
        if message.get("role") == "system":
            before = messages[index - 1].get("role") if index else None
            _require(before == "user", f"messages.{index}: system must follow a user message")
            _check_content(message.get("content"), f"messages.{index}.content", only=("text",))
    return [
        {name: value for name, value in message.items() if name in {"role", "content"}}
        for message in messages
        if message.get("role") != "system"
    ]


def _check_messages(messages: Any, *, tools_defined: bool) -> None:
    _require(
        isinstance(messages, list) and len(messages) > 0,
        "messages: at least one message is required",
    )
    seen: set[str] = set()
    wanted: list[str] = []
    for index, message in enumerate(messages):
        place = f"messages.{index}"
        _require(isinstance(message, dict), f"{place}: Input should be an object")
        role = "assistant" if index % 2 else "user"
        _require(message.get("role") == role, f"{place}: roles must alternate, expected {role}")
        _require(set(message) == {"role", "content"}, f"{place}: expected role and content")
        only = ("text", "tool_use", "thinking", "redacted_thinking") if index % 2 else _FROM_USER
        blocks = _check_content(message["content"], f"{place}.content", only=only)
        _check_pairing(blocks, wanted, place)
        wanted = [block["id"] for block in blocks if block["type"] == "tool_use"]
        _require(
            len(set(wanted)) == len(wanted) and seen.isdisjoint(wanted),
            "messages: `tool_use` ids must be unique",
        )
        seen.update(wanted)
        _require(
            tools_defined or not wanted,
            "Requests which have `tool_use` or `tool_result` blocks in messages must define tools",
        )
    _require(len(messages) % 2 == 1, "messages: the final message must be of the user")


_FROM_USER = ("text", "image", "document", "tool_result")
_IN_RESULT = ("text", "image", "document", "search_result", "tool_reference")


def _check_content(content: Any, place: str, *, only: tuple[str, ...]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        _require(bool(content.strip()), f"{place}: text content must contain non-whitespace text")
        return []
    _require(isinstance(content, list), f"{place}: Input should be a valid list")
    _require(len(content) > 0, f"{place}: content must be non-empty")
    for index, block in enumerate(content):
        _check_block(block, f"{place}.{index}", only)
    return list(content)


def _check_block(block: Any, place: str, only: tuple[str, ...]) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    _require(kind in only, f"{place}: expected a block of type {', '.join(only)}")
    if kind == "text":
        words = block.get("text")
        _require(isinstance(words, str), f"{place}.text: Field required")
        _require(words != "", "messages: text content blocks must be non-empty")
        _require(
            words.strip() != "", "messages: text content blocks must contain non-whitespace text"
        )
    elif kind == "tool_use":
        _require(_is_text(block.get("id")), f"{place}.tool_use.id: Field required")
        _require(_is_text(block.get("name")), f"{place}.tool_use.name: Field required")
        _require(isinstance(block.get("input"), dict), f"{place}.tool_use.input: not an object")
    elif kind == "tool_result":
        _require(_is_text(block.get("tool_use_id")), f"{place}.tool_use_id: Field required")
        _require(isinstance(block.get("is_error", False), bool), f"{place}.is_error: not a boolean")
        _check_content(block.get("content"), f"{place}.content", only=_IN_RESULT)


def _check_pairing(blocks: list[dict[str, Any]], wanted: list[str], place: str) -> None:
    kinds = [block["type"] for block in blocks]
    answered = Counter(block["tool_use_id"] for block in blocks if block["type"] == "tool_result")
    missing = [name for name in wanted if name not in answered]
    _require(
        not missing,
        f"{place}: `tool_use` ids were found without `tool_result` blocks immediately after:"
        f" {', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result`"
        " block in the next message.",
    )
    for name, times in answered.items():
        _require(
            name in wanted,
            f"{place}: unexpected `tool_use_id` found in `tool_result` blocks: {name}. Each"
            " `tool_result` block must have a corresponding `tool_use` block in the previous message.",
        )
        _require(
            times == 1,
            f"{place}: each tool_use must have a single result. Found multiple `tool_result`"
            f" blocks with id: {name}",
        )
    results = sum(answered.values())
    _require(
        all(kind == "tool_result" for kind in kinds[:results]),
        f"{place}: `tool_result` blocks must come first",
    )


def _check_marks(request: dict[str, Any]) -> None:
    contents = [request.get("system"), *(message["content"] for message in request["messages"])]
    listed = [block for content in contents if isinstance(content, list) for block in content]
    blocks = [*request.get("tools", []), *listed]
    told = (block.get("cache_control") for block in blocks)
    marks = [mark for mark in told if mark is not None]
    _require(
        len(marks) <= _MOST_MARKS,
        f"A maximum of {_MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}.",
    )
    for mark in marks:
        known = isinstance(mark, dict) and mark.get("type") == "ephemeral"
        _require(known, "cache_control: Input should be of type 'ephemeral'")
        _require(
            mark.get("ttl", "5m") in ("5m", "1h"), "cache_control.ttl: Input should be '5m' or '1h'"
        )
