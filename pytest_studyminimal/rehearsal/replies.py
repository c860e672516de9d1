"""From a request's bytes to the reply's document, the same for the same bytes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pytest_studyminimal.rehearsal.agent import respond
from pytest_studyminimal.rehearsal.checks import InvalidRequestError, check
from pytest_studyminimal.rehearsal.conversation import directory_of
from pytest_studyminimal.rehearsal.usage import size_of, tokens_in, usage_of

# So many characters of a cut text for each token: half of what a token holds.
_CUT_PER_TOKEN = 2


def checked(body: bytes, *, beta: bool = False) -> dict[str, Any]:
    """Return the request in a body; raises InvalidRequestError where the API would refuse it."""
    try:
        request: dict[str, Any] = json.loads(body)
        check(request, beta=beta)
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError):
        raise InvalidRequestError("The request body is not valid JSON") from None
    return request


def reply_to(body: bytes, request: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to a checked request and its bytes."""
    digest = hashlib.sha256(body).hexdigest()
    content = [
        {"type": "tool_use", "id": f"toolu_{digest[:20]}{index:02}", **block}
        if block["type"] == "tool_use"
        else block
        for index, block in enumerate(respond(request))
    ]
    wants_tools = content[-1]["type"] == "tool_use"
    tokens = tokens_in(size_of(content, directory_of(request)))
    stop_reason = "tool_use" if wants_tools else "end_turn"
    if tokens > request["max_tokens"]:
        content, tokens, stop_reason = _cut(content, request["max_tokens"])
    return {
        "id": f"msg_{digest[:24]}",
        "type": "message",
        "role": "assistant",
        "model": request["model"],
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage_of(body, request, tokens),
    }


def _cut(content: list[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], int, str]:
    # A model that runs into its limit: half a sentence, or a call that never came.
    words = content[0].get("text", "")[: limit * _CUT_PER_TOKEN].rstrip()
    return ([{"type": "text", "text": words}] if words else []), limit, "max_tokens"
