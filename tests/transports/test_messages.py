"""The tool loop against a provider on loopback: what reached the wire and what the meter saw."""

from __future__ import annotations

import json
import time
from decimal import Decimal

import pytest
from providers import (
    KEY,
    MODEL,
    Ledger,
    Toolbox,
    api,
    assignment,
    carried,
    message,
    scripted,
    text,
    tool_use,
    tools,
    usage,
)

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import (
    AttemptBudgetError,
    BudgetRefusedError,
    LedgerError,
    ProviderError,
    RunStoppedError,
)
from pytest_studyminimal.protocol.records import ToolCall, ToolResult, Usage
from pytest_studyminimal.protocol.study import Connection
from pytest_studyminimal.transports.messages import (
    MessagesApi,
    first_request_bytes,
    read_key,
    request_body,
)

SEARCH = {"repo_search": lambda _: "src/retry.py:3: RETRIES = 5"}


def refused_budget():
    zero = money.ZERO
    return BudgetRefusedError(
        cap_usd=Decimal(1), spent_usd=zero, reserved_usd=zero, needed_usd=Decimal(2)
    )


def test_a_plain_answer_is_one_request_settled_with_the_measured_usage():
    transcript, meter, received = carried(message(text("In src/retry.py:3.")))

    assert transcript.ending == "finished"
    assert transcript.answer == "In src/retry.py:3."
    assert transcript.answer_complete
    assert (transcript.turns, transcript.requests) == (1, 1)
    assert transcript.models == (MODEL,)
    assert transcript.usage == Usage(input_tokens=1200, output_tokens=80)
    assert transcript.usage_complete
    assert 0 < transcript.wall_s < 5
    assert meter.events == [
        ("reserve", len(received[0].body), 1024),
        ("settle", Usage(input_tokens=1200, output_tokens=80)),
    ]


def test_the_request_holds_the_question_and_nothing_that_was_not_planned():
    _, _, received = carried(message(text("ok")), toolbox=Toolbox(SEARCH), system="Be exact.")

    assert received[0].path == "/v1/messages"
    assert received[0].json == {
        "model": MODEL,
        "max_tokens": 1024,
        "temperature": 0,
        "system": "Be exact.",
        "messages": [{"role": "user", "content": "Where is the retry policy?"}],
        "tools": [
            {
                "name": "repo_search",
                "description": "Does repo_search.",
                "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
            }
        ],
    }
    headers = received[0].headers
    assert set(headers) == {
        "host",
        "accept",
        "accept-encoding",
        "anthropic-version",
        "content-type",
        "content-length",
        "x-api-key",
    }
    assert headers["x-api-key"] == KEY
    assert headers["anthropic-version"] == "2023-06-01"
    assert headers["accept-encoding"] == "identity"


def test_without_tools_or_system_text_neither_key_is_sent():
    _, _, received = carried(message(text("ok")))
    assert set(received[0].json) == {"model", "max_tokens", "temperature", "messages"}


@pytest.mark.parametrize(
    ("temperature", "sent"), [("0", "0"), ("1.0", "1"), ("0.7", "0.7"), ("0.25", "0.25")]
)
def test_the_temperature_is_sent_as_the_number_it_is(temperature, sent):
    body = request_body(assignment(), (), [], temperature=Decimal(temperature))
    assert f'"temperature":{sent},'.encode() in body


@pytest.mark.parametrize(
    "question",
    ["naïve café", "設定の再試行", "🦉 owl", 'quotes " and \\ and \n', "lone \ud800 half"],
)
def test_the_bytes_reserved_are_the_bytes_sent(question):
    box = Toolbox({"repo_search": lambda _: "résultat: 見つかった \udc00"})
    script = [tools(tool_use(query="ré \ud83d")), message(text("ok"))]
    _, meter, received = carried(*script, toolbox=box, question=question, system="système")

    assert meter.reserved_bytes == [len(request.body) for request in received]
    assert received[0].json["messages"][0]["content"] == question
    assert first_request_bytes(
        assignment(question=question, system="système"), box.definitions, temperature=Decimal(0)
    ) == len(received[0].body)


def test_history_tools_and_results_count_for_the_second_reservation():
    box = Toolbox({"repo_search": lambda _: "x" * 5000})
    _, meter, received = carried(tools(tool_use()), message(text("ok")), toolbox=box)
    first, second = meter.reserved_bytes
    assert second > first + 5000
    assert second == len(received[1].body)


# Tool turns


def test_parallel_calls_are_answered_once_each_in_order_at_the_start_of_the_next_message():
    box = Toolbox(
        {
            "repo_search": lambda _: "src/retry.py:3: RETRIES = 5",
            "repo_read": lambda _: ToolResult(text="path: required text", is_error=True),
            "doc_search": lambda _: ToolResult(text="timed out after 30 s", is_error=True),
        },
        servers={"doc_search": "docs"},
    )
    uses = [
        tool_use("repo_search", "toolu_1", query="retry"),
        tool_use("Bash", "toolu_2", command="ls"),
        tool_use("repo_read", "toolu_3", path=5),
        tool_use("doc_search", "toolu_4", query="slow"),
    ]
    transcript, meter, received = carried(
        tools(text(""), *uses), message(text("done")), toolbox=box
    )

    assistant, results = received[1].json["messages"][1:]
    assert assistant == {"role": "assistant", "content": uses}
    assert results["role"] == "user"
    assert [block["type"] for block in results["content"]] == ["tool_result"] * 4
    assert [block["tool_use_id"] for block in results["content"]] == [use["id"] for use in uses]
    assert [block.get("is_error", False) for block in results["content"]] == [
        False,
        True,
        True,
        True,
    ]
    assert [name for name, _, _ in box.called] == ["repo_search", "repo_read", "doc_search"]
    assert {timeout for _, _, timeout in box.called} == {30.0}
    assert transcript.tool_calls == (
        ToolCall(name="repo_search"),
        ToolCall(name="Bash", is_error=True, refused=True),
        ToolCall(name="repo_read", is_error=True),
        ToolCall(name="doc_search", server="docs", is_error=True),
    )
    assert transcript.answer == "done"
    assert meter.kinds == ["reserve", "settle"] * 2
    assert transcript.usage == Usage(input_tokens=2400, output_tokens=160)


@pytest.mark.parametrize("kind", ["server_tool_use", "web_search_tool_result", "novel"])
def test_content_that_nobody_asked_for_is_a_failure_and_settled(kind):
    transcript, meter, received = carried(
        message(text("ok"), {"type": kind, "id": "srvtoolu_1", "name": "web_search", "input": {}})
    )
    assert transcript.ending == "protocol"
    assert transcript.problem == "content of a kind that was not asked for"
    assert meter.kinds == ["reserve", "settle"]
    assert len(received) == 1


@pytest.mark.parametrize(
    "impossible",
    [
        {"input_tokens": 0, "output_tokens": 0},
        {"input_tokens": 0, "output_tokens": 7},
        {"input_tokens": 7, "output_tokens": 0},
        {"input_tokens": 7, "output_tokens": 7, "server_tool_use": {"web_search_requests": 3}},
    ],
)
def test_impossible_usage_keeps_its_reservation(impossible):
    transcript, meter, _ = carried(message(text("ok"), usage=impossible))
    assert meter.kinds == ["reserve", "retain"]
    assert not transcript.usage_complete


def test_thinking_is_sent_back_unchanged():
    thinking = {"type": "thinking", "thinking": "…", "signature": "c2ln"}
    novel = {"type": "redacted_thinking", "data": "\ud800"}
    said = {"type": "text", "text": "Looking.", "citations": None}
    use = {**tool_use(), "caller": {"type": "direct"}}
    _, _, received = carried(
        tools(thinking, novel, said, text(" \n"), use), message(text("ok")), toolbox=Toolbox(SEARCH)
    )
    assert received[1].json["messages"][1]["content"] == [thinking, novel, said, use]


@pytest.mark.parametrize("words", ["", " ", "\n\t"])
def test_a_blank_tool_result_is_sent_as_words(words):
    box = Toolbox({"repo_search": lambda _: words})
    _, _, received = carried(tools(tool_use()), message(text("ok")), toolbox=box)
    assert received[1].json["messages"][2]["content"][0]["content"] == "(empty result)"


def test_a_tool_that_raises_is_an_error_result_without_its_words():
    def broken(_):
        raise RuntimeError("token=hunter2")

    box = Toolbox({"repo_search": broken})
    transcript, _, received = carried(tools(tool_use()), message(text("ok")), toolbox=box)
    assert b"hunter2" not in received[1].body
    assert received[1].json["messages"][2]["content"][0]["is_error"] is True
    assert transcript.tool_calls[0].is_error


def test_cut_results_keep_their_original_size():
    box = Toolbox({"repo_search": lambda _: ToolResult(text="cut", original_bytes=123456)})
    transcript, _, _ = carried(tools(tool_use()), message(text("ok")), toolbox=box)
    assert transcript.tool_calls == (ToolCall(name="repo_search", original_bytes=123456),)


def test_a_hallucinated_name_is_recorded_as_one_printable_line():
    name = "rm -rf\n\x1b[31m" + "x" * 500
    transcript, _, _ = carried(tools(tool_use(name)), message(text("ok")), toolbox=Toolbox(SEARCH))
    recorded = transcript.tool_calls[0].name
    assert recorded.isprintable()
    assert len(recorded) <= 128


@pytest.mark.parametrize(
    "uses",
    [
        [tool_use(tool_id="toolu_1"), tool_use(tool_id="toolu_1")],
        [tool_use(tool_id="toolu_1"), tool_use("Bash", "toolu_2"), tool_use("Bash", "toolu_1")],
    ],
)
def test_a_tool_id_twice_in_a_reply_fails_before_a_second_request(uses):
    box = Toolbox(SEARCH)
    transcript, meter, received = carried(tools(*uses), toolbox=box)
    assert len(received) == 1
    assert box.called == []
    assert transcript.ending == "protocol"
    assert transcript.problem == "a tool id was used twice"
    assert meter.kinds == ["reserve", "settle"]
    assert transcript.usage_complete
    assert [call.refused for call in transcript.tool_calls] == [True] * len(uses)


def test_a_tool_id_of_an_earlier_turn_fails_before_the_next_request():
    box = Toolbox(SEARCH)
    script = [tools(tool_use(tool_id=name)) for name in ("a", "b", "a")]
    transcript, meter, received = carried(*script, toolbox=box)
    assert len(received) == 3
    assert transcript.ending == "protocol"
    assert len(box.called) == 2
    assert meter.kinds == ["reserve", "settle"] * 3


def test_too_many_calls_in_a_turn_are_all_counted_and_none_is_run():
    box = Toolbox(SEARCH, servers={"repo_search": "docs"})
    uses = [tool_use(tool_id=f"toolu_{number}") for number in range(21)]
    transcript, meter, received = carried(tools(text("hm"), *uses), toolbox=box)
    assert len(received) == 1
    assert box.called == []
    assert transcript.ending == "finished"
    assert transcript.problem == "21 tools requested in one turn, at most 20"
    assert transcript.stop_reason == "tool_use"
    assert not transcript.answer_complete
    assert (
        transcript.tool_calls == (ToolCall(name="repo_search", server="docs", refused=True),) * 21
    )
    assert meter.kinds == ["reserve", "settle"]


def test_as_many_calls_as_allowed_are_run():
    box = Toolbox(SEARCH)
    uses = [tool_use(tool_id=f"toolu_{number}") for number in range(20)]
    transcript, _, _ = carried(tools(*uses), message(text("ok")), toolbox=box)
    assert len(box.called) == 20
    assert transcript.answer_complete


def test_the_last_turn_may_not_ask_for_tools():
    box = Toolbox(SEARCH)
    script = [tools(tool_use(tool_id=f"toolu_{number}")) for number in range(9)]
    transcript, meter, received = carried(*script, toolbox=box)
    assert len(received) == transcript.turns == transcript.requests == 8
    assert len(box.called) == 7
    assert transcript.ending == "finished"
    assert transcript.problem == "turn limit 8 reached"
    assert not transcript.answer_complete
    assert [call.refused for call in transcript.tool_calls] == [False] * 7 + [True]
    assert meter.kinds == ["reserve", "settle"] * 8


def test_the_last_turn_may_answer():
    script = [tools(tool_use(tool_id="a")), message(text("done"))]
    transcript, _, _ = carried(*script, toolbox=Toolbox(SEARCH), turns=2)
    assert transcript.answer_complete
    assert transcript.problem is None


# Stop reasons


def test_text_blocks_are_joined_by_an_empty_line():
    transcript, _, _ = carried(message(text("a"), text(" "), text("b")))
    assert transcript.answer == "a\n\nb"
    assert transcript.answer_complete


def test_only_the_last_reply_is_the_answer():
    script = [tools(text("Let me look."), tool_use()), message(text("Found."))]
    transcript, _, _ = carried(*script, toolbox=Toolbox(SEARCH))
    assert transcript.answer == "Found."


@pytest.mark.parametrize(
    "content",
    [
        [],
        [{"type": "thinking", "thinking": "...", "signature": "c2ln"}],
        [text("")],
        [text(" \n\t")],
    ],
)
def test_an_ended_turn_without_words_is_no_complete_answer(content):
    transcript, meter, received = carried(message(*content))
    assert transcript.ending == "finished"
    assert transcript.stop_reason == "end_turn"
    assert not transcript.answer_complete
    assert transcript.answer == ""
    assert len(received) == 1
    assert meter.kinds == ["reserve", "settle"]


@pytest.mark.parametrize("stop", ["max_tokens", "refusal", "model_context_window_exceeded"])
def test_a_cut_reply_is_understood_but_no_complete_answer(stop):
    transcript, meter, received = carried(
        message(text("The retry policy lives in"), stop_reason=stop)
    )
    assert transcript.ending == "finished"
    assert transcript.stop_reason == stop
    assert transcript.answer == "The retry policy lives in"
    assert not transcript.answer_complete
    assert len(received) == 1
    assert meter.kinds == ["reserve", "settle"]


@pytest.mark.parametrize("stop", ["max_tokens", "refusal", "model_context_window_exceeded"])
def test_a_call_that_came_with_a_cut_reply_is_counted_and_not_run(stop):
    box = Toolbox(SEARCH)
    transcript, _, received = carried(message(tool_use(), stop_reason=stop), toolbox=box)
    assert len(received) == 1
    assert box.called == []
    assert transcript.tool_calls == (ToolCall(name="repo_search", refused=True),)
    assert transcript.ending == "finished"


@pytest.mark.parametrize("stop", ["pause_turn", "novel_reason", None, 5, "", "Shout!", "x" * 50])
def test_every_other_stop_reason_is_a_failure_that_is_paid_for(stop):
    transcript, meter, received = carried(message(text("looks complete"), stop_reason=stop))
    assert len(received) == 1
    assert transcript.ending == "protocol"
    assert "stop reason" in transcript.problem
    assert not transcript.answer_complete
    assert meter.kinds == ["reserve", "settle"]
    assert transcript.usage_complete


def test_tool_use_without_a_call_and_a_call_without_tool_use_are_failures():
    for reply in (
        tools(text("hm")),
        message(tool_use()),
        message(tool_use(), stop_reason="stop_sequence"),
    ):
        box = Toolbox(SEARCH)
        transcript, meter, received = carried(reply, toolbox=box)
        assert transcript.ending == "protocol"
        assert box.called == []
        assert len(received) == 1
        assert meter.kinds == ["reserve", "settle"]


def test_every_served_model_is_listed_once_in_order():
    script = [
        tools(tool_use(tool_id="a"), model="m-1"),
        tools(tool_use(tool_id="b"), model="m-2"),
        message(text("ok"), model="m-1"),
    ]
    transcript, _, _ = carried(*script, toolbox=Toolbox(SEARCH))
    assert transcript.models == ("m-1", "m-2")


# Usage


@pytest.mark.parametrize(
    ("reported", "measured"),
    [
        (usage(), Usage(input_tokens=1200, output_tokens=80)),
        (
            usage(
                cache_read_input_tokens=None, cache_creation_input_tokens=None, cache_creation=None
            ),
            Usage(input_tokens=1200, output_tokens=80),
        ),
        (
            usage(cache_read_input_tokens=50, cache_creation_input_tokens=7),
            Usage(
                input_tokens=1200, output_tokens=80, cache_read_tokens=50, cache_write_1h_tokens=7
            ),
        ),
        (
            usage(
                cache_creation_input_tokens=7,
                cache_creation={"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": None},
            ),
            Usage(
                input_tokens=1200,
                output_tokens=80,
                cache_write_5m_tokens=5,
                cache_write_1h_tokens=2,
            ),
        ),
        (
            usage(service_tier="standard", server_tool_use={"web_search_requests": 0}),
            Usage(input_tokens=1200, output_tokens=80),
        ),
    ],
)
def test_valid_usage_is_settled_tier_by_tier(reported, measured):
    transcript, meter, _ = carried(message(text("ok"), usage=reported))
    assert meter.events[-1] == ("settle", measured)
    assert transcript.usage == measured
    assert transcript.largest_prompt_tokens == measured.prompt_tokens


@pytest.mark.parametrize(
    "reported",
    [
        None,
        [],
        "many",
        {},
        {"input_tokens": 900},
        {"output_tokens": 900},
        usage(output_tokens=-3),
        usage(input_tokens=900.5),
        usage(input_tokens=900.0),
        usage(input_tokens=True),
        usage(input_tokens=None),
        usage(input_tokens="900"),
        usage(input_tokens=10**12 + 1),
        usage(input_tokens=10**40),
        usage(cache_read_input_tokens=-1),
        usage(cache_read_input_tokens=False),
        usage(cache_creation_input_tokens=1.5),
        usage(cache_creation=[]),
        usage(cache_creation_input_tokens=7, cache_creation={"ephemeral_5m_input_tokens": 8}),
        usage(
            cache_creation_input_tokens=7,
            cache_creation={"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 4},
        ),
        usage(cache_creation={"ephemeral_1h_input_tokens": 1}),
    ],
)
def test_invalid_usage_keeps_the_reservation_and_ends_the_attempt(reported):
    transcript, meter, received = carried(
        tools(tool_use(), usage=reported), toolbox=Toolbox(SEARCH)
    )
    assert len(received) == 1
    assert transcript.ending == "protocol"
    assert transcript.problem == "the response's usage is missing or invalid"
    assert meter.kinds == ["reserve", "retain"]
    assert not transcript.usage_complete
    assert transcript.usage == Usage()


def test_usage_lost_in_the_second_turn_leaves_the_first_one_counted():
    script = [tools(tool_use()), message(text("ok"), usage=None)]
    transcript, meter, _ = carried(*script, toolbox=Toolbox(SEARCH))
    assert meter.kinds == ["reserve", "settle", "reserve", "retain"]
    assert transcript.usage == Usage(input_tokens=1200, output_tokens=80)
    assert not transcript.usage_complete


def test_the_largest_prompt_is_that_of_one_reply_not_of_the_sum():
    script = [
        tools(tool_use(tool_id="a"), usage=usage(input_tokens=60_000)),
        message(text("ok"), usage=usage(input_tokens=50_000, cache_read_input_tokens=20_000)),
    ]
    transcript, _, _ = carried(*script, toolbox=Toolbox(SEARCH))
    assert transcript.largest_prompt_tokens == 70_000


# The meter's word


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    ("refusal", "ending"),
    [
        (refused_budget(), "budget"),
        (RunStoppedError("the run stopped at a: failed"), "budget"),
        (AttemptBudgetError("attempt: 0.10 USD"), "attempt-budget"),
    ],
)
def test_a_refused_reservation_sends_nothing(refusal, ending, number):
    script = [tools(tool_use(tool_id=f"toolu_{index}")) for index in range(8)]
    meter = Ledger(refusals={number: refusal})
    transcript, _, received = carried(*script, toolbox=Toolbox(SEARCH), meter=meter)
    assert len(received) == transcript.requests == number - 1
    assert transcript.ending == ending
    assert transcript.problem == str(refusal)
    assert transcript.usage_complete
    assert (transcript.wall_s == 0) == (number == 1)
    assert meter.kinds == ["reserve", "settle"] * (number - 1)


def test_a_ledger_that_fails_passes_through():
    with scripted(message(text("ok"))) as provider, pytest.raises(LedgerError):
        api(provider.base_url).carry(
            assignment(), Toolbox(), Ledger(refusals={1: LedgerError("disk full")})
        )
    assert provider.received == []


def test_ctrl_c_during_a_reservation_sends_nothing():
    meter = Ledger(refusals={1: KeyboardInterrupt()})
    transcript, _, received = carried(message(text("ok")), meter=meter)
    assert transcript.ending == "interrupted"
    assert received == []
    assert meter.events == []


def test_ctrl_c_during_a_tool_returns_what_was_seen():
    def interrupted(_):
        raise KeyboardInterrupt

    box = Toolbox({"repo_search": interrupted})
    uses = [tool_use(tool_id="a"), tool_use(tool_id="b")]
    transcript, meter, _ = carried(tools(*uses), toolbox=box)
    assert transcript.ending == "interrupted"
    assert meter.kinds == ["reserve", "settle"]
    assert transcript.usage_complete
    assert [call.refused for call in transcript.tool_calls] == [False, True]


def test_a_tool_may_finish_after_the_deadline_and_nothing_is_sent_afterwards():
    box = Toolbox({"repo_search": lambda _: time.sleep(0.4) or "late"})
    uses = [tool_use(tool_id="a"), tool_use(tool_id="b")]
    transcript, meter, received = carried(tools(*uses), toolbox=box, deadline_s=0.3)
    assert transcript.ending == "deadline"
    assert transcript.problem == "the deadline of 0.3 s passed"
    assert len(received) == len(box.called) == 1
    assert [call.refused for call in transcript.tool_calls] == [False, True]
    assert meter.kinds == ["reserve", "settle"]
    assert transcript.wall_s >= 0.4


def test_a_deadline_longer_than_a_socket_can_wait_is_no_error():
    transcript, _, _ = carried(message(text("ok")), deadline_s=1e9)
    assert transcript.answer_complete


# Evidence


def test_what_was_received_is_kept_to_be_judged_again():
    script = [tools(tool_use()), message(text("lone \ud800 half"))]
    transcript, _, _ = carried(*script, toolbox=Toolbox({"repo_search": lambda _: "\udfff"}))
    first, second = transcript.raw
    assert first["request"] == 1
    assert first["reply"]["content"] == [tool_use()]
    assert first["tool_results"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "?"}
    ]
    assert second["status"] == 200
    assert transcript.answer == "lone ? half"
    json.dumps(transcript.raw, ensure_ascii=False).encode()


def test_the_turns_of_an_attempt_share_a_connection():
    script = [tools(tool_use()), message(text("ok"))]
    _, _, received = carried(*script, toolbox=Toolbox(SEARCH))
    assert received[0].connection == received[1].connection


# The key


def connection(**fields):
    known = {"transport": "messages-api", "model": MODEL, "base_url": "https://api.example"}
    return Connection(**{**known, "key": "PROVIDER_KEY", **fields})


def test_the_key_is_read_from_the_named_variable():
    assert read_key(connection(), {"PROVIDER_KEY": KEY}) == KEY


def test_a_rehearsal_needs_no_key():
    rehearsal = connection(provider="rehearsal", base_url=None, key=None)
    assert read_key(rehearsal, {})


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "sk-secret\n",
        "sk-secret\r\nx: y",
        "sk-sécret",
        "sk secret",
        "sk-secret\x00",
        "\x7f",
    ],
)
def test_an_unusable_key_is_refused_by_its_variable_and_never_quoted(value):
    environ = {} if value is None else {"PROVIDER_KEY": value}
    with pytest.raises(ProviderError, match=r"^PROVIDER_KEY: found ") as refusal:
        read_key(connection(), environ)
    assert "secret" not in str(refusal.value)
    frame = refusal.traceback[-1]
    assert "secret" not in repr(frame.locals)


def test_the_key_is_in_no_repr():
    assert KEY not in repr(MessagesApi(base_url="http://127.0.0.1:1", key=KEY))
