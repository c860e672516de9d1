"""Results of MCP tools as text for a model: visible marks for what is cut or cannot be shown."""

from __future__ import annotations

import json
from typing import Any

from pytest_studyminimal.protocol.records import ToolResult


def of_call(plain: dict[str, Any], limit: int) -> ToolResult:
    """Return the text of a plain `tools/call` result, at most `limit` bytes of UTF-8.

    Structured content is shown as JSON where a server sends nothing else.
    """
    blocks = [_text(block) for block in plain.get("content") or ()]
    if not blocks and plain.get("structuredContent") is not None:
        blocks = [json.dumps(plain["structuredContent"], ensure_ascii=False)]
    return _cut("\n".join(blocks), limit, is_error=bool(plain.get("isError")))


def error(line: str, limit: int) -> ToolResult:
    """Return an error result of one line."""
    return _cut(" ".join(line.split()), limit, is_error=True)


def _cut(text: str, limit: int, *, is_error: bool) -> ToolResult:
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return ToolResult(text=data.decode(), is_error=is_error)
    mark = f"\n[cut: the result has {len(data)} bytes, above the limit of {limit}]"
    kept = data[: max(0, limit - len(mark))].decode("utf-8", "ignore")
    return ToolResult(text=kept + mark, is_error=is_error, original_bytes=len(data))


def _text(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource":
        return _resource(block.get("resource") or {})
    if kind == "resource_link":
        return f"[link: {block.get('uri')}]"
    return _placeholder(str(kind), block.get("mimeType"), block.get("data"))


def _resource(resource: dict[str, Any]) -> str:
    if isinstance(resource.get("text"), str):
        return f"[resource {resource.get('uri')}]\n{resource['text']}"
    return _placeholder(
        f"resource {resource.get('uri')}", resource.get("mimeType"), resource.get("blob")
    )


def _placeholder(kind: str, mime: Any, data: Any) -> str:
    size = f", {len(data)} base64 characters" if isinstance(data, str) else ""
    return f"[{kind} not shown: {mime or 'unknown type'}{size}]"
