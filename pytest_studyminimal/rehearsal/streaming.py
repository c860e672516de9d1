"""A reply as the events of a stream, in the order in which the API sends them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = 80

Block = dict[str, Any]


def events_of(reply: dict[str, Any]) -> Iterator[bytes]:
    """Return the server-sent events of a reply: its start, its blocks in pieces, its end."""
    unfinished: Block = {
        "content": [],
        "stop_reason": None,
        "usage": {**reply["usage"], "output_tokens": 1},
    }
    yield _event("message_start", message={**reply, **unfinished})
    for index, block in enumerate(reply["content"]):
        yield from _block_events(index, block)
    ending = {"stop_reason": reply["stop_reason"], "stop_sequence": reply["stop_sequence"]}
    final = {"output_tokens": reply["usage"]["output_tokens"]}
    yield _event("message_delta", delta=ending, usage=final)
    yield _event("message_stop")


def _block_events(index: int, block: Block) -> Iterator[bytes]:
    empty: Block = {"input": {}} if block["type"] == "tool_use" else {"text": ""}
    yield _event("content_block_start", index=index, content_block={**block, **empty})
    for delta in _deltas(block):
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _deltas(block: Block) -> Iterator[Block]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in _pieces(block["text"]))
        return
    arguments = json.dumps(block["input"])
    for piece in _pieces(arguments):
        yield {"type": "input_json_delta", "partial_json": piece}


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def _event(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n".encode()
