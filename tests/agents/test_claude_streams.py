"""Streams of Claude Code, stored and made: what each is judged to be, and what it is charged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamed import HERE, MODEL, billed, counts, events, verdict, written

MCP = "doc-bridge-mcp"
PRICE = Decimal("0.000962")

# Stored streams: arm, status, beginning of the reason, charge.
STORED = [
    ("control-clean", None, "completed", None, PRICE),
    ("no-result", None, "invalid-setup", "no result events, required exactly one", "0.10"),
    ("second-result-zero-cost", None, "invalid-setup", "2 result events", "0.10"),
    ("event-after-result", None, "invalid-setup", "the result is not the last event", "0.10"),
    ("line-split-by-foreign-event", None, "invalid-setup", "line 4 is not a JSON object", "0.10"),
    ("unknown-events-tolerated", None, "completed", None, PRICE),
    ("text-on-stdout", None, "invalid-setup", "line 1 is not a JSON object", "0.10"),
    ("unicode-line-separators", None, "completed", None, PRICE),
    ("locale-independent-decoding", None, "completed", None, PRICE),
    ("one-huge-line", None, "completed", None, PRICE),
    ("usage-repeated-per-block", None, "completed", None, "0.00262055"),
    ("success-with-is-error", None, "failed", "the CLI ended with success with is_error", "0.10"),
    ("empty-answer-success", None, "completed", "no usable answer", PRICE),
    ("auxiliary-model", None, "invalid-cost", "served by model claude-haiku-4-5", "0.10"),
    ("reported-cost-61x", None, "invalid-cost", "reported 0.058682 USD and computed", "0.10"),
    ("max-budget-overshoot", None, "budget-exceeded", "the CLI stopped at its budget", "0.1112"),
    ("mcp-pending-at-init", MCP, "invalid-setup", "server doc-bridge is pending", "0.10"),
    ("extra-tools-in-init", None, "invalid-setup", "offered tools differ from the plan", "0.10"),
    ("denials-shape-a_read_denied", None, "completed", None, PRICE),
    ("denials-shape-b_mcp_denied", MCP, "invalid-setup", "the CLI denied mcp__doc-bridge", "0.10"),
    ("denials-shape-c_bash_tried", None, "invalid-setup", "called Bash, which was not", "0.10"),
    (
        "self-update",
        None,
        "invalid-setup",
        "the CLI said 2.1.300, required version 2.1.296",
        "0.10",
    ),
    ("tier-exact", None, "completed", None, "0.01005"),
    ("tier-plus-one", None, "completed", None, "0.0502505"),
]


@pytest.mark.parametrize(("name", "arm", "status", "reason", "charged"), STORED)
def test_a_stored_stream_is_judged_and_charged(name, arm, status, reason, charged):
    found = verdict(name, arm=arm or "repository-only")

    assert found.judgement.status == status
    assert (found.judgement.reason or "").startswith(reason or "")
    assert (found.judgement.reason is None) == (reason is None)
    assert found.charged_usd == Decimal(charged)


MEASURED = {
    "api_error_400": ("failed", "0.10"),
    "budget_exceeded": ("budget-exceeded", "0.10"),
    "called_denied_mcp_tool": ("invalid-setup", "0.10"),
    "called_unavailable_tool": ("invalid-setup", "0.10"),
    "completed_denied_read_outside": ("completed", "0.0001561"),
    "completed_mcp": ("completed", "0.0002343"),
    "completed_repository_only": ("completed", "0.0002343"),
    "mcp_server_failed": ("invalid-setup", "0.10"),
    "not_logged_in": ("failed", "0.10"),
    "overloaded_after_retries": ("failed", "0.10"),
    "terminated_without_result": ("failed", "0.10"),
    "unrecognized_model": ("invalid-setup", "0.10"),
}


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_a_stream_of_the_real_program_is_judged(name):
    file = HERE / "measured" / f"{name}.jsonl"
    data = file.read_bytes()
    arm = MCP if b'"doc-bridge"' in data else "repository-only"

    found = verdict(data, arm=arm, exit_status=int(file.with_suffix(".exit").read_text()))

    status, charged = MEASURED[name]
    assert (found.judgement.status, found.charged_usd) == (status, Decimal(charged))


def test_every_stored_and_measured_stream_has_an_expectation():
    assert {file.stem for file in (HERE / "streams").glob("*.jsonl")} == {row[0] for row in STORED}
    assert {file.stem for file in (HERE / "measured").glob("*.jsonl")} == set(MEASURED)


def test_the_zero_of_a_second_result_does_not_win_over_the_cost_of_the_first():
    found = verdict("second-result-zero-cost", reserved="0.0005")

    assert found.charged_usd == PRICE


@pytest.mark.parametrize("order", [1, -1])
def test_the_largest_valid_cost_of_several_results_is_charged(order):
    rows = events()
    more = {**rows[-1], "total_cost_usd": 0.3}

    found = verdict([*rows[:-1], *[rows[-1], more][::order]])

    assert (found.judgement.status, found.charged_usd) == ("invalid-setup", Decimal("0.3"))


def test_unknown_events_are_counted_by_name_and_a_retry_of_the_cli_apart():
    seen = verdict("unknown-events-tolerated").described()

    assert seen["unknown_events"] == {
        "rate_limit_event": 1,
        "system/hook_response": 1,
        "system/hook_started": 1,
        "system/thinking_tokens": 1,
        "tool_progress": 1,
    }
    assert seen["api_retries"] == 1


def test_usage_is_the_results_and_a_message_in_blocks_counts_once():
    seen = verdict("usage-repeated-per-block")

    assert seen.transcript.usage.model_dump() == {
        "input_tokens": 9,
        "output_tokens": 905,
        "cache_read_tokens": 38715,
        "cache_write_5m_tokens": 0,
        "cache_write_1h_tokens": 8900,
        "reasoning_tokens": 0,
    }
    assert seen.transcript.largest_prompt_tokens == 23936
    assert len(seen.transcript.tool_calls) == 2


def test_the_tier_is_decided_by_the_largest_prompt_and_by_the_sum_where_none_is_known():
    assert verdict("tier-exact").described()["cost_basis"] == "base, largest request"
    assert verdict("tier-plus-one").described()["cost_basis"] == "above-100k, largest request"

    rows = events("tier-exact")
    for row in rows:
        row.get("message", {}).pop("usage", None)
    rows[-1]["modelUsage"][MODEL]["inputTokens"] += 100_000
    found = verdict(rows).described()
    assert found["cost_basis"] == "above-100k, aggregate prompt"


def test_an_answer_is_kept_exactly_and_never_taken_from_an_earlier_message():
    rows = events("unicode-line-separators")
    assert verdict(rows).transcript.answer == rows[-1]["result"]
    assert any(char in rows[-1]["result"] for char in "\u2028\u2029\x85")

    empty = verdict("empty-answer-success").transcript
    assert (empty.answer, empty.answer_complete) == ("", False)


@pytest.mark.parametrize("name", ["success-with-is-error", "max-budget-overshoot"])
def test_the_text_of_an_error_is_no_answer(name):
    assert verdict(name).transcript.answer == ""


def test_a_stream_is_read_alike_in_every_locale():
    code = (
        "import hashlib\nfrom streamed import verdict\n"
        "answer = verdict('locale-independent-decoding').transcript.answer\n"
        "print(hashlib.sha256(answer.encode()).hexdigest())"
    )
    seen = set()
    for language in ("C", "C.UTF-8"):
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE),
            "LC_ALL": language,
            "PYTHONUTF8": "0",
            "PYTHONCOERCECLOCALE": "0",
            "PYTHONIOENCODING": "ascii",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("cost", "agrees"),
    [
        ("0.001924", True),
        ("0.001924000000001", False),
        ("0.000481", True),
        ("0.000480999", False),
        ("9.62e-4", True),
        ("9.62E-04", True),
        ("0", False),
    ],
)
def test_costs_agree_up_to_a_factor_of_two_exactly(cost, agrees):
    text = json.dumps(billed(cost="@")[-1]).replace('"@"', cost)
    stream = written(events()[:-1]) + text.encode()

    found = verdict(stream)

    assert (found.judgement.status == "completed") is agrees
    assert found.judgement.status in {"completed", "invalid-cost"}


def test_a_charge_keeps_every_digit_of_a_reported_cost():
    text = json.dumps(billed(cost="@")[-1]).replace('"@"', "0.00096200000000000030001")
    found = verdict(written(events()[:-1]) + text.encode())

    assert found.described()["charged_usd"] == "0.00096200000000000030001"


@pytest.mark.parametrize(
    "cost", ["null", '"0.000962"', "true", "-0.1", "1e999", "1e400000000", "[]", "-0", "0.1e-99999"]
)
def test_what_is_no_amount_is_no_cost(cost):
    text = json.dumps(billed(cost="@")[-1]).replace('"@"', cost)
    found = verdict(written(events()[:-1]) + text.encode())

    if cost == "-0":
        assert found.judgement.status == "invalid-cost"
    else:
        assert found.judgement.reason == "total_cost_usd is missing or no amount"
        assert found.described()["reported_cost_usd"] is None
    assert found.charged_usd == Decimal("0.10")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_a_cost_that_is_no_json_makes_its_line_a_problem(constant):
    text = json.dumps(billed(cost="@")[-1]).replace('"@"', constant)
    found = verdict(written(events()[:-1]) + text.encode())

    assert found.judgement.status == "invalid-setup"
    assert found.judgement.reason.startswith("line 5 is not a JSON object")


CREATION = {"ephemeral_5m_input_tokens": 60_000, "ephemeral_1h_input_tokens": 40_000}


@pytest.mark.parametrize(
    ("creation", "usd"),
    [
        (CREATION, "0.0155"),
        (None, "0.020"),
        ({"ephemeral_5m_input_tokens": 10_000, "ephemeral_1h_input_tokens": 0}, "0.01925"),
        ({"ephemeral_5m_input_tokens": 100_000}, "0.0125"),
        ({"ephemeral_5m_input_tokens": 200_000}, None),
        ({"ephemeral_5m_input_tokens": 60_000, "ephemeral_1h_input_tokens": 40_001}, None),
        ({"ephemeral_5m_input_tokens": -1}, None),
        ({"ephemeral_5m_input_tokens": True}, None),
        ("all", None),
    ],
)
def test_cache_writes_are_priced_by_how_long_they_last(creation, usd):
    usage = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 100_000}
    if creation is not None:
        usage["cache_creation"] = creation
    rows = [events()[0], events()[-1]]

    found = verdict(
        billed(rows, cost=0.0155, usage=usage, model_usage={MODEL: counts(created=100_000)})
    )

    if usd is None:
        assert found.judgement.status == "invalid-cost"
        assert found.judgement.reason.startswith("usage.cache_creation ")
    else:
        assert found.computed.usd == Decimal(usd)
        assert found.judgement.status == "completed"


@pytest.mark.parametrize(
    ("model_usage", "reason"),
    [
        ([], "modelUsage is no object"),
        ({MODEL: []}, "modelUsage has missing or invalid counts"),
        ({MODEL: {**counts(1), "outputTokens": None}}, "modelUsage has missing or invalid counts"),
        ({MODEL: counts(1.5)}, "modelUsage has missing or invalid counts"),
        ({MODEL: counts(-1)}, "modelUsage has missing or invalid counts"),
        ({MODEL: counts(True)}, "modelUsage has missing or invalid counts"),
        ({MODEL: counts(10**30)}, "modelUsage has missing or invalid counts"),
        ({}, "usage without modelUsage"),
        ({MODEL: counts(1200, 340, 5200, 3100, costBasis="unknown")}, "costBasis is unknown"),
        ({MODEL: counts(1200, 340, 5200, 3100, costBasis="guess")}, "costBasis is guess"),
        ({MODEL: counts(1200, 340, 5200, 3100, webSearchRequests=2)}, "web searches were charged"),
        ({f"{MODEL}-x": counts(1200, 340, 5200, 3100)}, f"served by model {MODEL}-x"),
    ],
)
def test_counts_that_cannot_be_priced_are_an_invalid_cost(model_usage, reason):
    found = verdict(billed(model_usage=model_usage))

    assert found.judgement.status == "invalid-cost"
    assert found.judgement.reason.startswith(reason)
    assert found.charged_usd == Decimal("0.10")


def test_no_usage_and_no_cost_agree():
    rows = [events()[0], events()[-1]]
    rows[-1].pop("usage")

    found = verdict(billed(rows, cost=0, model_usage={}))

    assert (found.judgement.status, found.charged_usd) == ("completed", Decimal(0))


def test_an_overshoot_is_charged_in_full_and_stops():
    found = verdict("control-clean", reserved="0.0009")

    assert found.judgement.status == "budget-exceeded"
    assert found.charged_usd == PRICE


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ({"exit_status": 1}, "failed", "ended by exit status 1"),
        ({"exit_status": -9}, "failed", "ended by signal SIGKILL"),
        ({"exit_status": None, "stayed": True}, "failed", "the CLI did not exit after its result"),
        ({"exit_status": None, "ending": "deadline"}, "timed-out", "the deadline of 300 s passed"),
        ({"cut": True}, "failed", "its output passed the cap"),
    ],
)
def test_an_end_other_than_a_clean_exit_is_never_completed(end, status, reason):
    found = verdict("control-clean", **end)

    assert (found.judgement.status, found.charged_usd) == (status, Decimal("0.10"))
    assert found.judgement.reason.startswith(reason)
    assert found.described()["reported_cost_usd"] == "0.000962"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (-15, "ended by signal SIGTERM without a result"),
        (143, "ended by exit status 143 (SIGTERM) without a result"),
        (137, "ended by exit status 137 (SIGKILL) without a result"),
        (1, "ended by exit status 1 without a result"),
    ],
)
def test_a_process_that_died_without_a_result_failed_and_its_signal_is_named(status, reason):
    found = verdict("no-result", exit_status=status)

    assert (found.judgement.status, found.judgement.reason) == ("failed", reason)
    assert any("no result events" in problem for problem in found.judgement.problems)
    assert found.charged_usd == Decimal("0.10")
    assert not found.transcript.usage_complete
    assert found.described()["computed_cost_usd"] is None


def test_what_messages_told_before_a_lost_result_is_never_charged_less():
    rows = events()[:-1]
    rows[1]["message"]["usage"]["cache_creation_input_tokens"] = 5_000_000

    found = verdict(rows, exit_status=1)

    assert found.charged_usd > Decimal("0.10")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"claude_code_version": "2.1.2960"}, "the CLI said 2.1.2960, required version 2.1.296"),
        ({"claude_code_version": "2.1.296-beta"}, "the CLI said 2.1.296-beta"),
        ({"claude_code_version": None}, "the CLI said no version"),
        ({"model": "claude-opus"}, "the CLI started with model claude-opus"),
        ({"tools": ["Read", "Grep"]}, "offered tools differ from the plan: missing ['Glob']"),
        ({"tools": ["Read", "Grep", "Glob", "Glob"]}, "offered tools differ from the plan"),
        ({"mcp_servers": [{"name": "x", "status": "connected"}]}, "server x was not asked for"),
    ],
)
def test_a_start_that_differs_from_the_plan_is_an_invalid_setup(change, reason):
    rows = events()
    rows[0].update(change)

    found = verdict(rows)

    assert found.judgement.status == "invalid-setup"
    assert found.judgement.reason.startswith(reason)


@pytest.mark.parametrize("status", ["failed", "pending", "needs-auth", "disabled", ""])
def test_a_server_that_is_not_connected_is_named_with_its_status(status):
    rows = events("mcp-pending-at-init")
    rows[0]["mcp_servers"][0]["status"] = status

    reason = verdict(rows, arm=MCP).judgement.reason

    assert reason.startswith(f"server doc-bridge is {status}")


def test_a_server_there_twice_or_not_at_all_is_found():
    rows = events("denials-shape-b_mcp_denied")
    rows[0]["mcp_servers"] *= 2
    assert verdict(rows, arm=MCP).judgement.reason == "server doc-bridge is there 2 times"

    rows[0]["mcp_servers"] = []
    assert verdict(rows, arm=MCP).judgement.reason == "server doc-bridge is not there"


def calls(*answers):
    """Return a clean stream in the server's arm with one call of its search per answer."""
    rows = events("denials-shape-b_mcp_denied")
    rows[-1]["permission_denials"] = []
    first, *_, result = rows
    made = []
    for number, is_error in enumerate(answers):
        use = {
            "type": "tool_use",
            "id": f"call{number}",
            "name": "mcp__doc-bridge__doc_search",
            "input": {},
        }
        message = {**events()[1]["message"], "id": f"m{number}", "content": [use]}
        made.append({"type": "assistant", "message": message})
        if is_error is not None:
            answer = {"type": "tool_result", "tool_use_id": f"call{number}", "content": "x"}
            answer["is_error"] = is_error
            made.append({"type": "user", "message": {"role": "user", "content": [answer]}})
    return [first, *made, result]


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ((True,), "invalid-setup"),
        ((True, True), "invalid-setup"),
        ((True, None), "invalid-setup"),
        ((True, False), "completed"),
        ((False,), "completed"),
        ((), "completed"),
    ],
)
def test_an_arm_whose_every_server_call_failed_is_invalid(answers, status):
    found = verdict(calls(*answers), arm=MCP)

    assert found.judgement.status == status
    if status != "completed":
        told = f"every call to server doc-bridge failed ({len(answers)})"
        assert found.judgement.reason == told


def test_a_tool_call_is_counted_once_by_its_id():
    rows = events()
    rows.insert(2, rows[1])

    assert len(verdict(rows).transcript.tool_calls) == 1


@pytest.mark.parametrize("position", [0, 1, 2, 4])
def test_a_second_init_anywhere_is_a_problem(position):
    rows = events()
    rows.insert(position, rows[0])

    assert "2 init events" in verdict(rows).judgement.reason


def test_a_message_of_another_model_is_an_invalid_cost_also_where_it_is_not_counted():
    rows = events()
    rows[1]["message"]["model"] = "claude-haiku-4-5"

    found = verdict(rows)

    assert found.judgement.status == "invalid-cost"
    assert found.judgement.reason.startswith("served by model claude-haiku-4-5")


@pytest.mark.parametrize(("alias", "status"), [(True, "completed"), (False, "invalid-cost")])
def test_the_dated_name_behind_an_alias_is_the_model_itself(alias, status):
    rows = events()
    for row in rows[1:]:
        if row["type"] == "assistant":
            row["message"]["model"] = f"{MODEL}-20261007"

    assert verdict(rows, alias=alias).judgement.status == status


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"1",
        b"null",
        b'"text"',
        b"{",
        b"{}{}",
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        '{"type": "x"}'.encode("utf-16"),
        b"Warning: something",
        b'{"type": "assistant"}',
        b'{"type": "assistant", "message": 3}',
    ],
)
def test_a_line_that_is_no_event_is_a_problem_and_the_result_still_counts(line):
    rows = written(events()).split(b"\n")

    found = verdict(b"\n".join([rows[0], line, *rows[1:]]))

    assert found.judgement.status == "invalid-setup"
    assert found.judgement.reason.startswith("line 2 is ")
    assert found.described()["reported_cost_usd"] == "0.000962"
    assert found.charged_usd == Decimal("0.10")


@pytest.mark.parametrize("line", [b"", b"  ", b"\t", b"\r"])
def test_an_empty_line_is_no_event_and_no_problem(line):
    rows = written(events()).split(b"\n")

    assert verdict(b"\n".join([rows[0], line, *rows[1:]])).judgement.status == "completed"


def test_line_ends_of_other_systems_and_a_missing_last_one_are_read():
    data = written(events())

    assert verdict(data.replace(b"\n", b"\r\n")).judgement.status == "completed"
    assert verdict(data[:-1]).judgement.status == "completed"
    assert verdict(b"\xef\xbb\xbf" + data).judgement.status == "completed"


def test_hostile_names_are_shown_as_one_printable_line():
    rows = events()
    rows[0]["tools"].append("evil\x1b[31m\n\u202e\ud800" + "x" * 5000)
    rows.insert(1, {"type": "\x1b]0;title\x07" * 100})

    found = verdict(rows)

    for text in (
        found.judgement.reason,
        *found.judgement.problems,
        *found.described()["unknown_events"],
    ):
        assert text.isprintable()
        assert len(text) <= 400
    json.dumps(found.described()).encode()


def test_a_stream_of_ten_thousand_kinds_of_events_is_counted_in_few_names():
    rows = events()
    rows[1:1] = [{"type": f"kind{number}"} for number in range(10_000)]

    seen = verdict(rows).described()["unknown_events"]

    assert len(seen) <= 41
    assert sum(seen.values()) == 10_000


def test_output_above_the_cap_fails_and_its_cost_still_counts():
    rows = events()
    rows[2]["message"]["content"][0]["content"] = "r" * 5_000_000

    found = verdict(rows)

    assert found.judgement.status == "failed"
    assert found.judgement.reason.startswith("its output passed the cap")
    assert found.described()["reported_cost_usd"] == "0.000962"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 5))
def test_garbage_anywhere_never_raises_and_never_lowers_the_charge(garbage, place):
    rows = written(events()).split(b"\n")
    rows.insert(place, garbage)

    found = verdict(b"\n".join(rows))

    assert found.charged_usd in {PRICE, Decimal("0.10")}
    if found.judgement.status == "completed":
        assert all(
            not line.strip() or line.strip().startswith(b"{") for line in garbage.split(b"\n")
        )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_value_in_any_field_of_any_event_never_raises(data):
    rows = events(data.draw(st.sampled_from(["control-clean", "denials-shape-b_mcp_denied"])))
    row = data.draw(st.sampled_from(rows))
    holder = data.draw(
        st.sampled_from([one for one in (row, row.get("message"), row.get("usage")) if one])
    )
    holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(JSON)

    found = verdict(rows)

    assert found.charged_usd >= 0
    json.dumps(found.described(), allow_nan=False).encode()


@pytest.mark.parametrize(
    ("is_error", "status"),
    [(False, "completed"), (None, "failed"), (True, "failed"), (0, "failed"), ("false", "failed")],
)
def test_only_a_plain_false_is_no_error(is_error, status):
    assert verdict(billed(is_error=is_error)).judgement.status == status


def test_a_result_without_the_flag_is_no_error():
    rows = events()
    rows[-1].pop("is_error")

    assert verdict(rows).judgement.status == "completed"


@pytest.mark.parametrize("servers", [["evil"], {"evil": "connected"}, "evil", None, 3])
def test_servers_that_cannot_be_read_prove_no_arm(servers):
    rows = events()
    rows[0]["mcp_servers"] = servers

    told = "server (unreadable) is (unreadable); server (unreadable) was not asked for"
    assert verdict(rows).judgement.reason == told


@pytest.mark.parametrize("denials", [{"tool_name": "Bash"}, 3, "Bash", [3], [{}]])
def test_denials_that_cannot_be_read_are_denials(denials):
    assert verdict(billed(permission_denials=denials)).judgement.status == "invalid-setup"


@pytest.mark.parametrize("content", [{"type": "tool_use"}, 3, ["text"]])
def test_content_that_cannot_be_read_is_a_problem(content):
    rows = events()
    rows[1]["message"]["content"] = content

    assert verdict(rows).judgement.reason.startswith("line 2 is an assistant event without")


@pytest.mark.parametrize("kind", ["server_tool_use", "mcp_tool_use"])
def test_calls_of_other_kinds_are_calls_outside_the_arm(kind):
    rows = events()
    rows[1]["message"]["content"][0]["type"] = kind

    assert verdict(rows).judgement.status == "invalid-setup"


@pytest.mark.parametrize("flag", ["true", 1, None])
def test_an_error_flag_of_another_type_is_an_error(flag):
    rows = calls(True)
    rows[2]["message"]["content"][0]["is_error"] = flag

    assert verdict(rows, arm=MCP).judgement.status == "invalid-setup"


def test_a_name_that_only_the_model_thought_of_is_not_shown():
    rows = events()
    rows[1]["message"]["content"][0]["name"] = "The answer is 42 in docs/budget.md"

    found = verdict(rows)

    assert found.judgement.reason == "called (unknown tool), which was not offered"
    assert "42" not in json.dumps(found.described())


def test_usage_of_messages_without_usage_of_the_result_is_an_invalid_cost():
    found = verdict(billed(cost=0, usage={}, model_usage={}))

    assert found.judgement.status == "invalid-cost"
    assert found.judgement.reason == "modelUsage has fewer tokens than one of the messages"


def test_every_known_cost_counts_where_the_attempt_is_not_valid():
    dear = {MODEL: counts(wrote=10_000_000)}
    rows = events()
    second = {**rows[-1], "total_cost_usd": 0, "modelUsage": dear}
    assert verdict([*rows, second]).charged_usd == 5

    split = {"cache_creation": {"ephemeral_5m_input_tokens": -1}}
    assert verdict(billed(cost=0, usage=split, model_usage=dear)).charged_usd == 5

    foreign = {"other": counts(costUSD=5)}
    assert verdict(billed(cost="x", model_usage=foreign)).charged_usd == 5


def test_a_later_block_without_usage_does_not_forget_the_earlier_one():
    rows = events()
    again = json.loads(json.dumps(rows[1]))
    again["message"].pop("usage")
    rows.insert(2, again)

    assert verdict(rows).transcript.largest_prompt_tokens == 5900


def test_a_flood_of_results_keeps_little_and_forgets_no_cost():
    rows = events()
    more = [{**rows[-1], "total_cost_usd": number / 1000} for number in range(3000)]

    found = verdict([*rows, *more[::-1]])

    assert found.charged_usd == Decimal("2.999")
