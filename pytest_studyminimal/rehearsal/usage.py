"""Tokens from bytes alone, and what prompt caching makes of a request that marks its content.

A request without marks counts a quarter of its bytes. With marks, what stood before the model's last
turn is read from the cache, since it was marked in the turn before; from there to the last mark is
written to it; the rest is input. Marks themselves and the working directory's own path count
nothing, so that a conversation costs the same wherever it is held.
"""

from __future__ import annotations

import json
from typing import Any

from pytest_studyminimal.rehearsal.conversation import directory_of, within

_BYTES_PER_TOKEN = 4
_CACHEABLE = ("tools", "system", "messages")

Block = dict[str, Any]


def usage_of(body: bytes, request: dict[str, Any], output_tokens: int) -> dict[str, Any]:
    """Return the usage of a reply of so many tokens to a request with these bytes."""
    earlier, later = _blocks(request)
    if any(block.get("cache_control") for block in (*earlier, *later)):
        return _cached(request, earlier, later, output_tokens)
    return {
        "input_tokens": tokens_in(len(body)),
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def tokens_in(size: int) -> int:
    """Return how many tokens that many bytes are."""
    return -(-size // _BYTES_PER_TOKEN)


def size_of(value: Any, directory: str | None) -> int:
    """Return the size of a value as JSON, with `directory` written as a dot."""
    text = json.dumps(value, ensure_ascii=False)
    if directory is not None:
        text = within(json.dumps(directory, ensure_ascii=False)[1:-1]).sub(".", text)
    return len(text.encode("utf-8", "backslashreplace"))


def _blocks(request: dict[str, Any]) -> tuple[list[Block], list[Block]]:
    # In the order in which a prompt is cached, split before the model's last turn.
    messages = request["messages"]
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    split = turns[-1] if turns else 0
    head = [*request.get("tools", []), *_listed(request.get("system", []))]
    earlier = [block for message in messages[:split] for block in _listed(message["content"])]
    later = [block for message in messages[split:] for block in _listed(message["content"])]
    return ([*head, *earlier], later) if turns else ([], [*head, *later])


def _listed(content: str | list[Block]) -> list[Block]:
    # A client that moves its mark on may send a block without one as a plain string.
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _cached(
    request: dict[str, Any], earlier: list[Block], later: list[Block], output_tokens: int
) -> dict[str, Any]:
    directory = directory_of(request)
    known, marks = 0, [(0, "5m")]
    size = 0
    for index, block in enumerate((*earlier, *later)):
        size += size_of({**block, "cache_control": None}, directory)
        if mark := block.get("cache_control"):
            marks.append((size, mark.get("ttl", "5m")))
        if index < len(earlier):
            known = size
    read = min(known, marks[-1][0])
    written = _written(read, marks)
    rest = {name: value for name, value in request.items() if name not in _CACHEABLE}
    return {
        "input_tokens": tokens_in(size + size_of(rest, None)) - tokens_in(marks[-1][0]),
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": sum(written.values()),
        "cache_read_input_tokens": tokens_in(read),
        "cache_creation": {
            "ephemeral_5m_input_tokens": written["5m"],
            "ephemeral_1h_input_tokens": written["1h"],
        },
    }


def _written(read: int, marks: list[tuple[int, str]]) -> dict[str, int]:
    written = {"5m": 0, "1h": 0}
    before = read
    for end, ttl in marks:
        if end > before:
            written[ttl] += tokens_in(end) - tokens_in(before)
            before = end
    return written
