"""What an agent did, call by call, from the kept stream of an attempt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.transports.stream import EventError, event_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST = 2_000


def steps(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the steps of a stream, of an agent CLI or of an API: `said`, `call` and `result`.

    Each has a `kind`; texts, arguments and results are private.
    """
    for line in lines:
        try:
            event = event_of(line)
        except EventError:
            continue
        if "request" in event:
            yield from _of_exchange(event)
            continue
        message, kind = event.get("message"), str(event.get("type"))
        if kind in {"assistant", "user"} and isinstance(message, dict):
            yield from _of_blocks(message.get("content"))
        elif kind == "system" and event.get("subtype") != "init":
            yield {"kind": "event", "name": str(event.get("subtype"))}
        elif kind == "result":
            yield {
                "kind": "end",
                "name": str(event.get("subtype")),
                "text": _text(event.get("result")),
            }


def _of_exchange(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    reply = event.get("reply")
    if not isinstance(reply, dict):
        yield {
            "kind": "event",
            "name": f"HTTP {event.get('status', 'nothing')}",
            "text": _text(event.get("text")),
        }
        return
    yield from _of_blocks(reply.get("content"))
    yield from _of_blocks(event.get("tool_results"))


def _of_blocks(content: object) -> Iterator[dict[str, Any]]:
    for block in content if isinstance(content, list) else ():
        if not isinstance(block, dict):
            continue
        match str(block.get("type")):
            case "text":
                yield {"kind": "said", "text": _text(block.get("text"))}
            case "tool_use":
                arguments = json.dumps(block.get("input"), ensure_ascii=False)
                yield {"kind": "call", "name": str(block.get("name")), "text": arguments}
            case "tool_result":
                yield {
                    "kind": "result",
                    "is_error": block.get("is_error") is True,
                    "text": _text(block.get("content")),
                }


def _text(value: object) -> str:
    if isinstance(value, list):
        parts = [block.get("text") for block in value if isinstance(block, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else ""


def step_lines(found: Iterable[dict[str, Any]], *, private: bool) -> Iterator[str]:
    """Yield one printable line per step; what was said, asked and answered only where `private`."""
    for number, step in enumerate(found, start=1):
        size = f"{len(step.get('text', '').encode('utf-8', 'replace')):,} bytes"
        name = one_line(step.get("name", ""), 128)
        head = {
            "said": f"said {size}",
            "call": f"call {name} ({size})",
            "result": f"{'error' if step.get('is_error') else 'result'} {size}",
            "event": f"event {name}",
            "end": f"end {name} ({size})",
        }[step["kind"]]
        told = f": {one_line(step['text'], _LONGEST)}" if private and step.get("text") else ""
        yield f"{number:>4}  {head}{told}"
