"""Requests to the Messages API, byte for byte as they are sent and as they are reserved for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.transports.wire import Reply, ToolUse, clean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from pytest_studyminimal.protocol.records import ToolDefinition, ToolResult
    from pytest_studyminimal.transports import Assignment


def request_body(
    assignment: Assignment,
    definitions: Sequence[ToolDefinition],
    messages: Sequence[dict[str, Any]],
    *,
    temperature: Decimal,
) -> bytes:
    """Return the request exactly as it is sent: compact JSON in UTF-8, a lone surrogate escaped."""
    request: dict[str, Any] = {
        "model": assignment.model,
        "max_tokens": assignment.output_tokens,
        "temperature": _number(temperature),
        "messages": list(messages),
    }
    if assignment.system is not None:
        request["system"] = assignment.system
    if definitions:
        request["tools"] = [definition.model_dump() for definition in definitions]
    text = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Surrogates occur only inside JSON strings, where Python's escape is JSON's own.
    return text.encode("utf-8", "backslashreplace")


def first_request_bytes(
    assignment: Assignment, definitions: Sequence[ToolDefinition], *, temperature: Decimal
) -> int:
    """Return the size of an attempt's first request, from which its first reservation follows."""
    question = [question_message(assignment.question)]
    return len(request_body(assignment, definitions, question, temperature=temperature))


def _number(amount: Decimal) -> int | float:
    return int(amount) if amount == amount.to_integral_value() else float(amount)


def question_message(question: str) -> dict[str, Any]:
    """Return the first message: the question's bytes and nothing else."""
    return {"role": "user", "content": question}


def assistant_message(reply: Reply) -> dict[str, Any]:
    """Return the reply as history: every block unchanged but blank texts, which the API refuses."""
    kept = [b for b in reply.content if b["type"] != "text" or b["text"].strip()]
    return {"role": "assistant", "content": kept}


def result_block(use: ToolUse, result: ToolResult) -> dict[str, Any]:
    """Return the one tool_result that answers `use`; its content is never blank."""
    block: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": use.id,
        "content": clean(result.text) if result.text.strip() else "(empty result)",
    }
    if result.is_error:
        block["is_error"] = True
    return block
