"""Requests as Claude Code 2.1.296 posts them: a recorded first one, trimmed, and those that follow."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import httpx

BETA = "context-management-2025-06-27,mid-conversation-system-2026-04-07,effort-2025-11-24"
HEADERS = {
    "authorization": "Bearer any",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": BETA,
}
DIRECTORY = "/repository"
_RECORDED = Path(__file__).with_name("claude_code_request.json")


def first(question=None, *, directory=DIRECTORY, tools=None, ttl=None):
    """Return the first request; `tools` are the names that are kept, all if none are given."""
    request = json.loads(_RECORDED.read_text("utf-8").replace(DIRECTORY, directory))
    if question is not None:
        request["messages"][0]["content"] = question
    if tools is not None:
        request["tools"] = [tool for tool in request["tools"] if tool["name"] in tools]
    if ttl is not None:
        for block in marked(request):
            block["cache_control"]["ttl"] = ttl
    return request


def marked(request):
    """Return the blocks that have a mark."""
    contents = [request["system"], *(message["content"] for message in request["messages"])]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [block for block in blocks if "cache_control" in block]


def following(request, reply, results):
    """Return the next request: the mark moves on, and results come in the order of completion.

    `results` are texts by the calls' order, or blocks' other members.
    """
    later = copy.deepcopy(request)
    told = later["messages"][-1]
    mark = told["content"][0]["cache_control"]
    told["content"] = told["content"][0]["text"]
    calls = [block for block in reply["content"] if block["type"] == "tool_use"]
    answers = [
        {
            "type": "tool_result",
            "tool_use_id": call["id"],
            **(result if isinstance(result, dict) else {"content": result}),
        }
        for call, result in zip(calls, results, strict=True)
    ]
    left = f"<total_tokens>{14_990_000 - len(later['messages'])} tokens left</total_tokens>"
    later["messages"] += [
        {"role": "assistant", "content": reply["content"]},
        {"role": "user", "content": answers[::-1]},
        {
            "role": "system",
            "content": [{"type": "text", "text": left, "cache_control": mark}],
        },
    ]
    return later


def post(provider, request, **headers):
    """Post a request as the CLI does; returns the response, read to its end."""
    with httpx.Client(verify=False, trust_env=False) as http:
        return http.post(
            f"{provider.base_url}/v1/messages?beta=true",
            content=json.dumps(request).encode(),
            headers={**HEADERS, **headers},
        )


def events(response):
    """Return the events of a stream, checked for the form of each."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for chunk in response.text.split("\n\n")[:-1]:
        name, data = chunk.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def message(response):
    """Return the message that a stream adds up to."""
    assert response.status_code == 200, response.text
    started, *between, ended, stopped = events(response)
    whole = started["message"]
    pieces = {}
    for event in between:
        if event["type"] == "content_block_start":
            assert event["index"] == len(whole["content"])
            whole["content"].append(event["content_block"])
            pieces[event["index"]] = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            pieces[event["index"]] += delta.get("text", "") + delta.get("partial_json", "")
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            block["text"] = pieces[index]
        else:
            block["input"] = json.loads(pieces[index])
    assert stopped == {"type": "message_stop"}
    return {**whole, **ended["delta"], "usage": {**whole["usage"], **ended["usage"]}}
