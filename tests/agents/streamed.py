"""A study with an agent CLI, streams of it, and today's verdict on them."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

from pytest_studyminimal.judging.streams import rejudge
from pytest_studyminimal.protocol.study import Study

HERE = Path(__file__).parent
MODEL = "claude-haiku-5-5"
VERSION = "2.1.296"
BASE = {
    "up_to_prompt_tokens": 100000,
    "input": "0.10",
    "output": "0.50",
    "cache_read": "0.01",
    "cache_write_5m": "0.125",
    "cache_write_1h": "0.20",
}
ABOVE = {
    "input": "0.50",
    "output": "2.50",
    "cache_read": "0.05",
    "cache_write_5m": "0.625",
    "cache_write_1h": "1.00",
}
TOOLS = ["list", "read", "search"]


def manifest(**connection):
    return {
        "schema": 1,
        "id": "agents",
        "title": "t",
        "question": "q",
        "budget": {"pilot_usd": "1", "full_usd": "2", "attempt_usd": "0.10"},
        "connections": {
            "cli": {"transport": "claude-code", "model": MODEL, "version": VERSION, **connection}
        },
        "prices": {"source": "s", "date": "2026-10-10", "tiers": [BASE, ABOVE]},
        "corpora": {"corpus": {"commit": "9" * 40}},
        "servers": {
            "doc-bridge": {
                "argv": ["node", "{engine}"],
                "allow": ["doc.search", "doc.get", "handoff.resolve"],
                "ready": {"tool": "doc.search"},
            }
        },
        "scenarios": {
            "repository-only": {"tools": TOOLS},
            "doc-bridge-mcp": {"tools": TOOLS, "servers": ["doc-bridge"]},
        },
        "tasks": [{"id": "task", "corpus": "corpus", "question": "q"}],
        "schedule": {"repetitions": 1},
    }


def study(**connection):
    return Study.model_validate_json(json.dumps(manifest(**connection)))


def events(name="control-clean"):
    text = (HERE / "streams" / f"{name}.jsonl").read_bytes()
    return [json.loads(line) for line in text.split(b"\n") if line.strip()]


def written(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def verdict(stream, *, arm="repository-only", reserved="0.10", alias=True, **end):
    """Judge bytes, events or the name of a stored stream; the process exited with 0 unless said."""
    if isinstance(stream, str):
        stream = (HERE / "streams" / f"{stream}.jsonl").read_bytes()
    elif isinstance(stream, list):
        stream = written(stream)
    plan = study(alias=alias)
    return rejudge(
        plan,
        plan.connections["cli"],
        arm,
        stream,
        end={"exit_status": 0, **end},
        attempt_usd=Decimal(reserved),
    )


def billed(rows=None, *, cost=None, usage=None, model_usage=None, **result):
    """Return a clean stream with another result: cost, `usage` and `modelUsage` as given."""
    rows = events() if rows is None else rows
    last = rows[-1]
    if cost is not None:
        last["total_cost_usd"] = cost
    if usage is not None:
        last["usage"] = usage
    if model_usage is not None:
        last["modelUsage"] = model_usage
    last.update(result)
    return rows


def counts(read=0, wrote=0, cached=0, created=0, **more):
    return {
        "inputTokens": read,
        "outputTokens": wrote,
        "cacheReadInputTokens": cached,
        "cacheCreationInputTokens": created,
        **more,
    }
