"""Usage of requests that mark their content: what prompt caching would make of them."""

from __future__ import annotations

import json

import cli_requests
import pytest

from pytest_studyminimal.rehearsal import RehearsalProvider

QUESTION = "What is the RETRY_LIMIT and how does the backoff grow? Cite source paths and lines."
READ = "1\timport time\n2\t\n3\tRETRY_LIMIT = 5\n"


@pytest.fixture(scope="module")
def provider():
    with RehearsalProvider() as running:
        yield running


def hold(provider, request, found="src/retry.py:3:RETRY_LIMIT = 5"):
    """Return the usage of each of the three turns of a conversation."""
    searched = cli_requests.message(cli_requests.post(provider, request))
    second = cli_requests.following(request, searched, [found, "No matches found"])
    read = cli_requests.message(cli_requests.post(provider, second))
    calls = [block for block in read["content"] if block["type"] == "tool_use"]
    third = cli_requests.following(second, read, [READ] * len(calls))
    answered = cli_requests.message(cli_requests.post(provider, third))
    assert answered["stop_reason"] == "end_turn"
    return [reply["usage"] for reply in (searched, read, answered)]


def built_in(**fields):
    return cli_requests.first(QUESTION, tools=("Glob", "Grep", "Read"), **fields)


def test_a_turn_reads_what_the_turn_before_had_and_writes_what_is_new(provider):
    first, second, third = hold(provider, built_in())
    assert first["cache_read_input_tokens"] == 0
    assert first["cache_creation_input_tokens"] > 500
    assert second["cache_read_input_tokens"] == first["cache_creation_input_tokens"]
    assert third["cache_read_input_tokens"] == (
        second["cache_read_input_tokens"] + second["cache_creation_input_tokens"]
    )
    assert 0 < third["cache_creation_input_tokens"] < first["cache_creation_input_tokens"]
    # What is no content, such as the settings, is never cached.
    assert first["input_tokens"] == third["input_tokens"] > 0


@pytest.mark.parametrize(("ttl", "written"), [(None, "5m"), ("5m", "5m"), ("1h", "1h")])
def test_writes_are_split_by_the_lifetime_in_the_marks(provider, ttl, written):
    for usage in hold(provider, built_in(ttl=ttl)):
        expected = dict.fromkeys(("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"), 0) | {
            f"ephemeral_{written}_input_tokens": usage["cache_creation_input_tokens"]
        }
        assert usage["cache_creation"] == expected


def test_marks_of_both_lifetimes_split_one_request(provider):
    request = built_in()
    system, *_, last = cli_requests.marked(request)
    system["cache_control"]["ttl"] = "1h"
    usage = cli_requests.message(cli_requests.post(provider, request))["usage"]
    split = usage["cache_creation"]
    assert sum(split.values()) == usage["cache_creation_input_tokens"]
    assert min(split.values()) > 0
    del last["cache_control"]
    less = cli_requests.message(cli_requests.post(provider, request))["usage"]
    assert less["cache_creation_input_tokens"] < usage["cache_creation_input_tokens"]
    assert less["input_tokens"] > usage["input_tokens"]


def test_where_only_the_system_is_marked_it_is_written_once_and_then_read(provider):
    words = [{"type": "text", "text": "Be exact. " * 50, "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": "Where?"}]
    request = {"model": "m", "max_tokens": 99, "system": words, "messages": messages}
    first = cli_requests.post(provider, request).json()["usage"]
    messages += [
        {"role": "assistant", "content": [{"type": "text", "text": "There."}]},
        {"role": "user", "content": "Really?"},
    ]
    second = cli_requests.post(provider, request).json()["usage"]
    assert first["cache_creation_input_tokens"] == second["cache_read_input_tokens"] > 100
    assert first["cache_read_input_tokens"] == second["cache_creation_input_tokens"] == 0
    assert second["input_tokens"] > first["input_tokens"]


def test_a_conversation_costs_the_same_in_every_directory(provider):
    found = "src/retry.py:3:RETRY_LIMIT = 5\n{}/docs/policy.md:3:no RETRY_LIMIT"
    directories = ["/repository", "/somewhere/else/with a blank/and-a-long-name", "/ü"]
    runs = [
        hold(provider, built_in(directory=directory), found.format(directory))
        for directory in directories
    ]
    assert runs[0] == runs[1] == runs[2]


def test_without_marks_the_usage_is_a_quarter_of_the_bytes(provider):
    request = built_in()
    for block in cli_requests.marked(request):
        del block["cache_control"]
    usage = cli_requests.message(cli_requests.post(provider, request))["usage"]
    assert usage["input_tokens"] == -(-len(json.dumps(request).encode()) // 4)
    assert "cache_creation" not in usage
