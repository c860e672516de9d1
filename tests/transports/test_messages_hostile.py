"""Providers that drip, flood, lie or vanish: every ending is named, bounded and charged."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import random
import signal
import socket
import struct
import threading
import time
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from providers import (
    KEY,
    MODEL,
    Ledger,
    Response,
    Toolbox,
    api,
    assignment,
    carried,
    message,
    read_one_request,
    scripted,
    speaking,
    text,
    tool_use,
    tools,
    usage,
)

from pytest_studyminimal.protocol.errors import LedgerError
from pytest_studyminimal.protocol.records import Usage

GOOD = json.dumps(message(text("ok"))).encode()
DEADLINE_S = 0.3
GRACE_S = 3.0


def head(length, extra=b""):
    return b"HTTP/1.1 200 OK\r\n" + extra + b"content-length: %d\r\n\r\n" % length


def drip(data, *, every_s=0.05):
    def speak(connection, stop):
        for byte in data:
            connection.sendall(bytes([byte]))
            if stop.wait(every_s):
                return

    return speak


def forever(piece, *, before=b"", every_s=0.0):
    def speak(connection, stop):
        connection.sendall(before)
        while not stop.is_set():
            connection.sendall(piece)
            if every_s:
                stop.wait(every_s)

    return speak


def silent(connection, _):
    connection.settimeout(10)
    connection.recv(1)


def deaf(_, stop):
    stop.wait(10)


def after(*parts):
    def speak(connection, _):
        for part in parts:
            connection.sendall(part)

    return speak


def carry(base_url, *, meter=None, **limits):
    meter = meter or Ledger()
    started = time.monotonic()
    transcript = api(base_url).carry(
        assignment(**{"deadline_s": DEADLINE_S, **limits}), Toolbox(), meter
    )
    assert not meter.open
    return transcript, meter, time.monotonic() - started


# The deadline is total

SLOW = {
    "one byte at a time in the body": drip(head(len(GOOD)) + GOOD),
    "one byte at a time in the status line": drip(b"HTTP/1.1 200 OK" + b" " * 500),
    "headers without end": forever(b"x-more: 1\r\n", before=b"HTTP/1.1 200 OK\r\n", every_s=0.02),
    "headers and then nothing": lambda c, stop: (c.sendall(head(9)), silent(c, stop)),
    "nothing at all": silent,
    "informational responses without end": forever(
        b"HTTP/1.1 103 Early Hints\r\n\r\n", every_s=0.01
    ),
    "one-byte chunks without end": forever(
        b"1\r\n{\r\n", before=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", every_s=0.01
    ),
    "a body without length that never ends": forever(
        b" ", before=b"HTTP/1.1 200 OK\r\n\r\n", every_s=0.01
    ),
    "an error page that drips": drip(
        b"HTTP/1.1 529 Busy\r\ncontent-length: 999\r\n\r\n" + b"{" * 999
    ),
}


@pytest.mark.parametrize("speak", SLOW.values(), ids=SLOW)
def test_no_way_of_being_slow_stretches_the_deadline(speak):
    with speaking(speak) as provider:
        transcript, meter, took_s = carry(provider.base_url)
        assert took_s < DEADLINE_S + GRACE_S
        assert took_s >= DEADLINE_S
        assert transcript.ending == "deadline"
        assert transcript.problem == "the deadline of 0.3 s passed"
    assert meter.kinds == ["reserve", "retain"]
    assert not transcript.usage_complete
    assert transcript.requests == 1
    assert transcript.wall_s < DEADLINE_S + GRACE_S


def test_the_connection_is_closed_at_the_deadline():
    with speaking(drip(head(len(GOOD)) + GOOD, every_s=0.1)) as provider:
        carry(provider.base_url)
        assert provider.gone.wait(2)


def test_a_provider_that_does_not_read_the_request_is_cut_at_the_deadline():
    with speaking(deaf, read_request=False) as provider:
        transcript, meter, took_s = carry(provider.base_url, question="x" * 30_000_000)
    assert took_s < DEADLINE_S + GRACE_S + 0.5
    assert transcript.ending == "deadline"
    assert meter.kinds == ["reserve", "retain"]


def test_a_handshake_that_never_comes_is_cut_at_the_deadline():
    with speaking(deaf, read_request=False) as provider:
        transcript, meter, took_s = carry(provider.base_url.replace("http:", "https:"))
    assert took_s < DEADLINE_S + GRACE_S
    assert transcript.ending == "deadline"
    assert meter.kinds == ["reserve", "retain"]


def test_a_connection_that_is_never_accepted_is_cut_at_the_deadline():
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        transcript, meter, took_s = carry(f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert took_s < DEADLINE_S + GRACE_S
    assert transcript.ending == "deadline"
    assert meter.kinds == ["reserve", "retain"]


def test_a_name_that_resolves_too_late_is_never_sent_to(monkeypatch):
    resolve = socket.getaddrinfo
    resolved = threading.Event()

    def slowly(*args, **kwargs):
        time.sleep(1.3)
        try:
            return resolve(*args, **kwargs)
        finally:
            resolved.set()

    with speaking(after(head(len(GOOD)), GOOD)) as provider:
        monkeypatch.setattr(socket, "getaddrinfo", slowly)
        transcript, _, took_s = carry(provider.base_url)
        assert took_s < DEADLINE_S + GRACE_S
        assert transcript.ending == "deadline"
        assert resolved.wait(5)
        for thread in threading.enumerate():
            if thread.name == "messages-api":
                thread.join(5)
        assert provider.requests == []


def test_a_drip_in_a_later_turn_is_cut_by_what_is_left():
    first = json.dumps(tools(tool_use())).encode()
    started = time.monotonic()

    def speak(connection, stop):
        connection.sendall(head(len(first)) + first)
        read_one_request(connection)
        drip(head(len(GOOD)) + GOOD)(connection, stop)

    box = Toolbox({"repo_search": lambda _: time.sleep(0.3) or "hit"})
    meter = Ledger()
    with speaking(speak) as provider:
        transcript = api(provider.base_url).carry(assignment(deadline_s=0.6), box, meter)
    assert time.monotonic() - started < 0.6 + GRACE_S
    assert transcript.ending == "deadline"
    assert meter.kinds == ["reserve", "settle", "reserve", "retain"]
    assert transcript.usage == Usage(input_tokens=1200, output_tokens=80)
    assert not transcript.usage_complete


def test_a_slow_but_timely_reply_is_an_answer():
    with speaking(drip(head(len(GOOD)) + GOOD, every_s=0.001)) as provider:
        transcript, meter, _ = carry(provider.base_url, deadline_s=10)
    assert transcript.answer_complete
    assert meter.kinds == ["reserve", "settle"]


# Lost and refused

RESET = struct.pack("ii", 1, 0)


def reset(connection, _):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def reset_in_the_body(connection, stop):
    connection.sendall(head(len(GOOD)) + GOOD[:20])
    stop.wait(0.1)
    reset(connection, stop)


def cut(connection, _):
    connection.sendall(head(len(GOOD)) + GOOD[: len(GOOD) // 2])
    connection.shutdown(socket.SHUT_RDWR)


LOST = {
    "closed at once": lambda connection, _: connection.close(),
    "reset at once": reset,
    "reset in the body": reset_in_the_body,
    "cut in the body": cut,
    "no HTTP": after(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "headers beyond all measure": after(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2_000_000),
    "a content-length that is no number": after(b"HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n"),
    "two content-lengths": after(head(10, b"content-length: 12\r\n"), b"x" * 12),
    "an upgrade that nobody asked for": after(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
    ),
    "bad chunks": after(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
}


@pytest.mark.parametrize("speak", LOST.values(), ids=LOST)
def test_a_lost_response_is_charged_and_not_asked_for_again(speak):
    with speaking(speak) as provider:
        transcript, meter, _ = carry(provider.base_url, deadline_s=5)
        assert len(provider.accepted) == 1
    assert transcript.ending == "transport"
    assert transcript.problem.startswith("the exchange failed (")
    assert meter.kinds == ["reserve", "retain"]
    assert not transcript.usage_complete


def test_a_refused_connection_keeps_the_reservation():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    transcript, meter, _ = carry(f"http://127.0.0.1:{port}")
    assert transcript.ending == "transport"
    assert transcript.problem == "the exchange failed (ConnectError)"
    assert meter.kinds == ["reserve", "retain"]


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (
            529,
            {"type": "error", "error": {"type": "overloaded_error", "message": "private"}},
            "overloaded_error",
        ),
        (
            429,
            {"type": "error", "error": {"type": "rate_limit_error", "message": "private"}},
            "rate_limit_error",
        ),
        (401, {"type": "error", "error": {"type": "authentication_error"}}, "authentication_error"),
        (400, {"type": "error", "error": {"type": "private: words", "message": "private"}}, None),
        (400, {"type": "error", "error": {"type": "x" * 41}}, None),
        (400, {"type": "error", "error": {"type": ["overloaded_error"]}}, None),
        (400, {"error": "private"}, None),
        (500, b"private oops", None),
        (502, b"<html>private</html>", None),
        (503, b"", None),
        (201, GOOD, None),
        (404, b"\xff\xfe", None),
    ],
)
def test_an_http_error_is_one_public_line_and_never_retried(status, body, problem):
    response = Response(body, status, {"retry-after": "1"})
    transcript, meter, received = carried(response)
    assert len(received) == 1
    assert transcript.ending == "transport"
    assert transcript.problem == f"HTTP {status}" + (f" ({problem})" if problem else "")
    assert meter.kinds == ["reserve", "retain"]


def test_an_error_in_a_later_turn_ends_the_attempt_on_the_kept_connection():
    script = [tools(tool_use()), Response({"error": {}}, 500), message(text("ok"))]
    transcript, meter, received = carried(*script, toolbox=Toolbox({"repo_search": lambda _: "x"}))
    assert len(received) == 2
    assert transcript.ending == "transport"
    assert meter.kinds == ["reserve", "settle", "reserve", "retain"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status):
    with scripted(message(text("elsewhere"))) as elsewhere:
        response = Response(b"", status, {"location": elsewhere.base_url + "/v1/messages"})
        transcript, meter, received = carried(response)
    assert elsewhere.received == []
    assert len(received) == 1
    assert transcript.problem == f"HTTP {status}"
    assert meter.kinds == ["reserve", "retain"]


def test_cookies_are_not_kept():
    script = [Response(tools(tool_use()), headers={"set-cookie": "session=1"}), message(text("ok"))]
    _, _, received = carried(*script, toolbox=Toolbox({"repo_search": lambda _: "x"}))
    assert "cookie" not in received[1].headers


def test_proxies_of_the_environment_are_not_used(monkeypatch):
    with scripted(message(text("proxied"))) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.base_url)
        transcript, _, _ = carried(message(text("direct")))
    assert transcript.answer == "direct"
    assert proxy.received == []


# Bodies beyond measure


def test_a_huge_reply_is_cut_and_charged():
    transcript, meter, _ = carried(message(text("h" * 50_000_000)))
    assert transcript.ending == "transport"
    assert transcript.problem == "the response is larger than 8 MiB"
    assert meter.kinds == ["reserve", "retain"]


def test_an_endless_fast_body_is_cut_long_before_the_deadline():
    endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with speaking(forever(b"10000\r\n" + b" " * 65536 + b"\r\n", before=endless)) as provider:
        transcript, _, took_s = carry(provider.base_url, deadline_s=30)
    assert transcript.problem == "the response is larger than 8 MiB"
    assert took_s < 5


def test_a_large_answer_within_measure_is_an_answer():
    transcript, _, _ = carried(message(text("h" * 4_000_000)))
    assert transcript.answer_complete
    assert len(transcript.answer) == 4_000_000


BOMB = gzip.compress(b" " * 300_000_000, 1)


@pytest.mark.parametrize(
    ("body", "coding", "problem"),
    [
        (gzip.compress(GOOD), "gzip", None),
        (zlib.compress(GOOD), "deflate", None),
        (BOMB, "gzip", "the response is larger than 8 MiB"),
        (gzip.compress(GOOD)[:-9], "gzip", "the response cannot be decompressed"),
        (GOOD, "gzip", "the response cannot be decompressed"),
        (
            gzip.compress(BOMB),
            "gzip, gzip",
            "the response is encoded in a way that was not asked for",
        ),
        (GOOD, "br", "the response is encoded in a way that was not asked for"),
    ],
)
def test_a_compressed_response_is_read_only_within_measure(body, coding, problem):
    transcript, meter, _ = carried(Response(body, headers={"content-encoding": coding}))
    assert transcript.problem == problem
    assert meter.kinds[1] == ("retain" if problem else "settle")


# Replies that are no replies

UNREADABLE = {
    "HTML": b"<html>proxy login</html>",
    "nothing": b"",
    "half": GOOD[:50],
    "NaN": GOOD.replace(b"1200", b"NaN"),
    "Infinity": GOOD.replace(b"1200", b"-Infinity"),
    "a number beyond all floats": GOOD.replace(b"1200", b"1e999"),
    "an integer of 5000 digits": GOOD.replace(b"1200", b"9" * 5000),
    "a key twice": GOOD.replace(b'"output_tokens"', b'"input_tokens": 1, "output_tokens"'),
    "a list": b"[" + GOOD + b"]",
    "null": b"null",
    "a string": b'"ok"',
    "two objects": GOOD + GOOD,
    "Latin-1": GOOD.replace(b'"ok"', b'"\xe9"'),
    "UTF-16": GOOD.decode().encode("utf-16"),
    "deep": b'{"a":' * 100_000,
    "deep and closed": b'{"a":' * 300 + b"1" + b"}" * 300,
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_a_body_that_is_no_reply_is_charged(body):
    transcript, meter, _ = carried(Response(body))
    assert transcript.ending == "protocol"
    assert transcript.problem.startswith("the response is ")
    assert meter.kinds == ["reserve", "retain"]
    assert transcript.turns == 0
    assert transcript.raw[0]["text"] == body[:2000].decode("utf-8", "replace")


@pytest.mark.parametrize("length", [len(GOOD) - 3, 1])
def test_a_content_length_that_is_too_short_cuts_the_reply(length):
    with speaking(after(head(length), GOOD)) as provider:
        transcript, meter, _ = carry(provider.base_url, deadline_s=5)
    assert transcript.ending == "protocol"
    assert meter.kinds == ["reserve", "retain"]


MALFORMED = {
    "another type": message(text("ok"), type="completion"),
    "an error with status 200": {"type": "error", "error": {"type": "api_error"}, "usage": usage()},
    "another role": message(text("ok"), role="user"),
    "no model": message(text("ok"), model=None),
    "an empty model": message(text("ok"), model=""),
    "a model with a line break": message(text("ok"), model="m\nx"),
    "a model beyond measure": message(text("ok"), model="m" * 201),
    "content as text": message(text("ok"), content="ok"),
    "content as null": message(content=None),
    "a block that is text": message("ok"),
    "a block without type": message({"text": "ok"}),
    "a block with an odd type": message({"type": ["text"]}),
    "text without text": message({"type": "text"}),
    "text as a number": message({"type": "text", "text": 5}),
    "a call without id": tools({"type": "tool_use", "name": "x", "input": {}}),
    "a call with an empty id": tools(tool_use(tool_id="")),
    "a call with a blank id": tools(tool_use(tool_id=" ")),
    "a call with a number as id": tools(tool_use(tool_id=7)),
    "a call without name": tools({"type": "tool_use", "id": "a", "input": {}}),
    "a call with an empty name": tools(tool_use("")),
    "a call with null as name": tools(tool_use(None)),
    "a call without input": tools({"type": "tool_use", "id": "a", "name": "x"}),
    "a call with a list as input": tools({"type": "tool_use", "id": "a", "name": "x", "input": []}),
    "a call with text as input": tools({"type": "tool_use", "id": "a", "name": "x", "input": "{}"}),
    "one malformed call of two": tools(tool_use(), {"type": "tool_use", "id": "b", "name": "x"}),
}


@pytest.mark.parametrize("reply", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_reply_with_valid_usage_is_settled_and_fails(reply):
    box = Toolbox({"x": lambda _: "x", "repo_search": lambda _: "x"})
    transcript, meter, received = carried(reply, toolbox=box)
    assert len(received) == 1
    assert box.called == []
    assert transcript.ending == "protocol"
    assert transcript.usage_complete
    assert meter.kinds == ["reserve", "settle"]


@pytest.mark.parametrize("reply", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_reply_without_usage_is_retained_and_fails(reply):
    transcript, meter, _ = carried({**reply, "usage": None})
    assert transcript.ending == "protocol"
    assert not transcript.usage_complete
    assert meter.kinds == ["reserve", "retain"]


# Interrupts


def test_ctrl_c_during_a_request_keeps_the_reservation_and_closes_the_connection():
    with speaking(silent) as provider:
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        transcript, meter, took_s = carry(provider.base_url, deadline_s=30)
        timer.join()
        assert provider.gone.wait(2)
    assert took_s < 2
    assert transcript.ending == "interrupted"
    assert transcript.problem == "the session was interrupted"
    assert meter.kinds == ["reserve", "retain"]
    assert not transcript.usage_complete


# The key


def test_the_key_is_in_no_frame_of_an_exception_that_passes_through():
    class Broken(Ledger):
        def settle(self, usage):
            raise LedgerError("disk full")

    with scripted(message(text("ok"))) as provider, pytest.raises(LedgerError) as failure:
        api(provider.base_url).carry(assignment(), Toolbox(), Broken())
    shown = [repr(value) for entry in failure.traceback for value in entry.frame.f_locals.values()]
    assert shown
    assert not any(KEY in words for words in shown)


def test_a_provider_that_echoes_the_key_cannot_publish_it(caplog):
    echo = {"type": "error", "error": {"type": "api_error", "message": KEY}, "x": f"<{KEY}>"}
    with caplog.at_level(logging.DEBUG):
        transcript, _, _ = carried(Response(echo, 401))
        assert KEY not in str(transcript)
        named, _, _ = carried(message(text("ok"), model=f"m-{KEY}"))
        assert named.models == ("m-[key]",)
    assert KEY not in caplog.text


def test_no_thread_and_no_warning_is_left_behind(capfd):
    with speaking(cut) as provider:
        carry(provider.base_url, deadline_s=5)
    with speaking(silent) as provider:
        carry(provider.base_url)
    time.sleep(0.05)
    assert not [thread for thread in threading.enumerate() if thread.name == "messages-api"]
    assert capfd.readouterr() == ("", "")


# Anything at all

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True),
    st.text(max_size=8),
    st.sampled_from(["text", "tool_use", "message", "assistant", MODEL, "end_turn", "\ud800"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "id", "name", "input", "text", "input_tokens", "output_tokens", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
blocks = st.one_of(
    values,
    st.builds(text, st.text(max_size=5)),
    st.builds(
        tool_use, st.sampled_from(["x", "repo_search", ""]), st.text(max_size=2), query=values
    ),
)
replies = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("message") | values,
        "role": st.just("assistant") | values,
        "model": st.just(MODEL) | values,
        "content": st.lists(blocks, max_size=3) | values,
        "stop_reason": st.sampled_from(["end_turn", "tool_use", "max_tokens", "pause_turn"])
        | values,
        "usage": st.builds(usage) | st.builds(usage, output_tokens=values) | values,
    },
)


@pytest.fixture(scope="module")
def provider():
    with scripted(message()) as running:
        yield running


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    bodies=st.lists(
        replies | st.builds(tools, blocks) | st.binary(max_size=20), min_size=1, max_size=3
    )
)
def test_no_reply_raises_and_every_reservation_is_closed_once(provider, bodies):
    meter = Ledger()
    script = [Response(body) for body in bodies]
    provider.serve(script)
    box = Toolbox({"x": json.dumps, "repo_search": lambda _: ""})
    transcript = api(provider.base_url).carry(assignment(), box, meter)
    assert not meter.open
    closed = meter.kinds.count("settle") + meter.kinds.count("retain")
    assert meter.kinds.count("reserve") == closed == transcript.requests >= 1
    assert transcript.usage_complete == ("retain" not in meter.kinds)
    assert transcript.ending in {"finished", "protocol"}
    assert transcript.problem is None or transcript.problem.isprintable()
    transcript.model_dump_json()
    json.dumps(transcript.raw, ensure_ascii=False, allow_nan=False).encode()
    assert meter.reserved_bytes == [len(request.body) for request in provider.received]


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 4))
def test_a_damaged_reply_never_raises(provider, seed, flips):
    chance = random.Random(seed)
    body = bytearray(GOOD)
    for _ in range(flips):
        body[chance.randrange(len(body))] = chance.randrange(256)
    provider.serve([Response(bytes(body))])
    meter = Ledger()
    api(provider.base_url).carry(assignment(), Toolbox(), meter)
    assert len(meter.kinds) == 2
    assert not meter.open
