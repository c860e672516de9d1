"""The provider as a streaming client meets it: events, authentication, other endpoints, bad clients."""

from __future__ import annotations

import json
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import cli_requests
import httpx
import pytest

from pytest_studyminimal.rehearsal import RehearsalProvider


@pytest.fixture(scope="module")
def provider():
    with RehearsalProvider() as running:
        yield running


def test_a_stream_starts_with_a_snapshot_and_ends_with_the_final_count(provider):
    before = provider.requests_served
    response = cli_requests.post(provider, cli_requests.first())
    assert provider.requests_served == before + 1
    assert response.headers["transfer-encoding"] == "chunked"
    found = cli_requests.events(response)
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    started = found[0]["message"]
    assert started["usage"]["output_tokens"] == 1
    assert (started["content"], started["stop_reason"]) == ([], None)
    assert found[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] > 1


def test_a_stream_adds_up_to_the_reply_that_is_not_streamed(provider):
    streamed = {"model": "m", "max_tokens": 900, "messages": [{"role": "user", "content": "x"}]}
    whole = cli_requests.post(provider, {**streamed, "stream": False}).json()
    assembled = cli_requests.message(cli_requests.post(provider, {**streamed, "stream": True}))
    assert assembled["content"] == whole["content"]
    assert assembled["stop_reason"] == whole["stop_reason"]
    assert set(assembled) == set(whole)
    assert assembled["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_a_request_without_tools_gets_a_short_text(provider):
    title = {"model": "m", "max_tokens": 90, "stream": True}
    title["messages"] = [{"role": "user", "content": "Give this session a title."}]
    reply = cli_requests.message(cli_requests.post(provider, title))
    assert reply["stop_reason"] == "end_turn"
    assert 0 < len(reply["content"][0]["text"]) < 100


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer any"}, 200),
        ({"authorization": "bearer any"}, 200),
        ({"x-api-key": "any"}, 200),
        ({"x-api-key": "", "authorization": "Bearer any"}, 200),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic any"}, 401),
        ({}, 401),
    ],
)
def test_a_key_or_a_bearer_token_is_required(provider, headers, status):
    response = cli_requests.post(provider, cli_requests.first(), **{"authorization": "", **headers})
    assert response.status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/", 404),
        ("GET", "/", 404),
        ("HEAD", "/v1/messages?beta=true", 405),
        ("GET", "/v1/messages", 405),
        ("OPTIONS", "/v1/messages", 405),
        ("PUT", "/v1/messages", 405),
        ("PATCH", "/v1/messages", 405),
        ("DELETE", "/v1/files/x", 404),
        ("POST", "/v1/messages/count_tokens", 404),
        ("POST", "/api/event_logging/batch", 404),
    ],
)
def test_other_endpoints_are_refused_at_once_and_counted(provider, method, path, status):
    before = provider.requests_served
    with httpx.Client(verify=False, trust_env=False, timeout=5) as http:
        for _ in range(2):
            body = b"{}" if method in {"PUT", "POST"} else None
            response = http.request(method, provider.base_url + path, content=body)
            assert response.status_code == status
    assert provider.requests_served == before + 2


def test_a_refusal_of_a_stream_is_json(provider):
    response = cli_requests.post(provider, cli_requests.first() | {"max_tokens": 0})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_client_that_goes_away_in_mid_stream_is_no_event(capfd):
    body = json.dumps(cli_requests.first()).encode()
    head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nanthropic-version: 1\r\n"
    head += f"anthropic-beta: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with RehearsalProvider() as running:
        port = int(running.base_url.rpartition(":")[2])
        for sent in (body, body[:50]):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(head.encode() + sent)
        assert cli_requests.post(running, cli_requests.first()).status_code == 200
        deadline = time.monotonic() + 5
        while running.requests_served < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert capfd.readouterr() == ("", "")


def test_many_clients_at_once_each_get_their_own_reply(provider):
    def ask(number):
        request = cli_requests.first(f"Where is the word_{number} defined?")
        return cli_requests.message(cli_requests.post(provider, request))

    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(ask, range(48)))
    for number, reply in enumerate(replies):
        assert f"word_{number}" in json.dumps(reply["content"])
