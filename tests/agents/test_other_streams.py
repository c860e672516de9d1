"""Streams of Codex and OpenCode, measured and from public reports, through `studyminimal judge`."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pytest_studyminimal.cli import main
from pytest_studyminimal.judging.streams import judge_alone

HERE = Path(__file__).parent


def judged(transport, name, status=0):
    folder = "measured" if (HERE / "measured" / transport / f"{name}.jsonl").exists() else "streams"
    file = HERE / folder / transport / f"{name}.jsonl"
    arguments = ["judge", str(file), "--transport", transport, "--exit-status", str(status)]
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


CODEX = [
    ("cat", 0, "completed", None),
    ("mcp", 0, "completed", None),
    ("patch", 0, "completed", None),
    ("spawn2", 0, "completed", None),
    ("v171-mcp", 0, "completed", None),
    ("rec-codex-cat-read-only", 0, "completed", None),
    ("codex-reconnect-then-ok", 0, "completed", None),
    ("err-empty", 0, "completed", None),
    ("mcpboom", 0, "invalid-setup", None),
    ("err-othermodel", 0, "invalid-cost", None),
    ("ro-mcpw", 0, "blocked", "permission"),
    ("nouserns", 0, "blocked", "environment"),
    ("err-e401", 1, "blocked", "authentication"),
    ("cfg-nokey", 1, "blocked", "authentication"),
    ("err-e403", 1, "blocked", "model-access"),
    ("err-e400m", 1, "blocked", "model-access"),
    ("err-e429quota", 1, "blocked", "budget"),
    ("err-e429", 1, "failed", None),
    ("err-e500", 1, "failed", None),
    ("err-drop", 1, "failed", None),
    ("err-failctx", 1, "failed", None),
    ("err-incomplete", 1, "failed", None),
    ("cfg-badprov", 1, "failed", None),
    ("sig-t1", -9, "failed", None),
    ("sig-t1", 0, "invalid-setup", None),
    ("item_type", 0, "invalid-setup", None),
    ("legacy_msg", 0, "invalid-setup", None),
]
OPENCODE = [
    ("o_read", 0, "completed", None),
    ("o_mcp", 0, "completed", None),
    ("opencode-two-steps", 0, "completed", None),
    ("all_zero", 0, "completed", None),
    ("deny-o_bash", 0, "completed", None),
    ("err-empty", 0, "completed", None),
    ("err-o_length", 0, "completed", None),
    ("noauto-ask", 0, "blocked", "permission"),
    ("err-e401", 1, "blocked", "authentication"),
    ("err-o_step2fail", 1, "blocked", "authentication"),
    ("err-e402", 1, "blocked", "budget"),
    ("err-e429quotaf", 1, "blocked", "budget"),
    ("err-e403", 1, "blocked", "model-access"),
    ("err-e404m", 1, "blocked", "model-access"),
    ("opencode-error-exit-zero", 0, "blocked", "model-access"),
    ("err-e429f", 1, "failed", None),
    ("err-e500f", 1, "failed", None),
    ("err-e400ctx", 1, "failed", None),
    ("err-drop", 1, "failed", None),
    ("cfg-nomodel", 1, "failed", None),
    ("sig-tmSIGTERM", -15, "failed", None),
    ("c_nofinish", 0, "invalid-setup", None),
    ("a_only_step_start", 0, "invalid-setup", None),
    ("b_no_finish", 0, "invalid-setup", None),
    ("c_cut_line", 0, "invalid-setup", None),
]


@pytest.mark.parametrize(("name", "status", "expected", "block"), CODEX)
def test_what_codex_wrote_is_told_apart(name, status, expected, block):
    verdict = judged("codex", name, status)

    assert (verdict["status"], verdict["block"]) == (expected, block)
    assert (verdict["charged_usd"], verdict["computed_cost_usd"]) == (None, None)
    assert verdict["reported_cost_usd"] is None
    assert {"cost", "offered-tools", "served-model", "servers"} <= set(verdict["unstated"])


@pytest.mark.parametrize(("name", "status", "expected", "block"), OPENCODE)
def test_what_opencode_wrote_is_told_apart(name, status, expected, block):
    verdict = judged("opencode", name, status)

    assert (verdict["status"], verdict["block"]) == (expected, block)
    assert (verdict["charged_usd"], verdict["computed_cost_usd"]) == (None, None)
    assert {"offered-tools", "served-model", "servers"} <= set(verdict["unstated"])


def test_codex_counts_a_thread_once_and_its_cache_as_part_of_input():
    running, cached = (
        judged("codex", "codex-cumulative-usage"),
        judged("codex", "codex-cached-subset"),
    )

    assert (running["turns"], running["usage"]["prompt_tokens"]) == (2, 30)
    assert running["usage"]["output_tokens"] == 15
    usage = cached["usage"]
    assert (usage["prompt_tokens"], usage["input_tokens"], usage["cache_read_tokens"]) == (
        1000,
        100,
        900,
    )
    assert (usage["output_tokens"], usage["reasoning_tokens"], usage["total_tokens"]) == (
        200,
        50,
        1200,
    )


def test_a_total_that_falls_is_a_problem_and_no_negative_count():
    lines = [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "turn.completed", "usage": usage(30, 15)},
        {"type": "turn.completed", "usage": usage(20, 15)},
    ]
    verdict = alone("codex", lines)

    assert verdict.judgement.status == "invalid-setup"
    assert "below the one before" in verdict.judgement.reason


def test_notices_are_counted_and_one_that_ends_the_stream_is_a_failure():
    assert judged("codex", "codex-reconnect-then-ok")["api_retries"] == 3
    lines = [
        {"type": "turn.started"},
        {"type": "turn.completed", "usage": usage(3, 1)},
        {"type": "error", "message": "stream disconnected"},
    ]
    assert alone("codex", lines).judgement.status == "failed"


def test_usage_that_the_provider_did_not_send_is_unknown_and_never_zero():
    for transport in ("codex", "opencode"):
        verdict = judged(transport, "err-nousage")
        assert verdict["usage_complete"] is False
        assert "usage" in verdict["unstated"]


def test_opencode_sums_its_steps_and_keeps_a_part_where_a_price_is_missing():
    verdict = judged("opencode", "opencode-two-steps")
    assert verdict["reported_cost_usd"] == "0.0139"
    usage = verdict["usage"]
    assert (usage["prompt_tokens"], usage["cache_read_tokens"]) == (1540, 300)
    assert (usage["cache_write_tokens"], usage["output_tokens"]) == (40, 160)
    assert verdict["tool_calls"] == 1
    free = judged("opencode", "all_zero")
    assert (free["reported_cost_usd"], free["partial_cost_usd"]) == (None, None)
    assert "cost" in free["unstated"]
    steps = [step("a", "tool-calls", cost=0.25), step("b", "stop", cost=0)]
    part = alone("opencode", steps).transcript
    assert part.agent.reported_cost_usd is None
    assert part.agent.partial_cost_usd == Decimal("0.25")
    assert part.more_costs_usd == (Decimal("0.25"),)


def test_a_step_that_is_told_twice_is_one_step():
    twice = [step("a", "stop"), step("a", "stop")]

    assert alone("opencode", twice).transcript.usage.input_tokens == 10


def test_words_of_a_task_or_a_model_block_nothing():
    said = "unexpected status 401 Unauthorized: bwrap: Creating new namespace failed"
    codex = [
        {"type": "turn.started"},
        {"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": said}},
        {
            "type": "item.completed",
            "item": {
                "id": "2",
                "type": "command_execution",
                "aggregated_output": f"I was told: {said}",
                "exit_code": 1,
                "status": "failed",
            },
        },
        {"type": "turn.failed", "error": {"message": f"the model said: {said}"}},
    ]
    assert alone("codex", codex).judgement.status == "failed"
    open_code = [
        {
            "type": "error",
            "error": {
                "name": "UnknownError",
                "data": {"message": "statusCode 401 ProviderAuthError"},
            },
        }
    ]
    assert alone("opencode", open_code).judgement.status == "failed"


def usage(given, output):
    return {"input_tokens": given, "cached_input_tokens": 0, "output_tokens": output}


def step(key, reason, cost=0.1, **tokens):
    counts = {"input": 10, "output": 5, "reasoning": 0, "cache": {"read": 0, "write": 0}} | tokens
    part = {"id": key, "messageID": "m", "type": "step-finish", "reason": reason, "cost": cost}
    return {"type": "step_finish", "part": {**part, "tokens": counts}}


def alone(transport, events, status=0):
    stdout = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    return judge_alone(transport, stdout, end={"exit_status": status}, most_bytes=4 * 2**20)


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_TYPES = st.sampled_from(
    [
        *("thread.started", "turn.started", "turn.completed", "turn.failed", "error"),
        *("item.started", "item.completed", "step_start", "step_finish", "text", "tool_use"),
    ]
)
_KEYS = ("usage", "item", "part", "error", "message", "id", "type")


@pytest.mark.parametrize("transport", ["codex", "opencode"])
@given(
    events=st.lists(
        st.fixed_dictionaries({"type": _TYPES}, optional=dict.fromkeys(_KEYS[:5], _ANY))
    )
)
def test_no_shape_of_an_event_raises_or_passes_for_more_than_it_is(transport, events):
    verdict = alone(transport, events)

    assert verdict.charged_usd is None
    json.dumps(verdict.described())


@pytest.mark.parametrize("transport", ["codex", "opencode"])
@given(data=st.binary(max_size=300))
def test_no_bytes_raise(transport, data):
    judge_alone(transport, data, end={"exit_status": 0}, most_bytes=4 * 2**20)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--transport", "claude-code"], "required one of codex, opencode"),
        (["--transport", "nobody"], "required one of codex, opencode"),
        ([], "--transport codex|opencode"),
    ],
)
def test_a_stream_without_a_study_needs_a_transport_that_can_do_without(arguments, found):
    stream = str(HERE / "measured" / "codex" / "cat.jsonl")
    done = CliRunner().invoke(main, ["judge", stream, *arguments])

    assert done.exit_code == 4
    assert found in done.output
