"""Providers on loopback, and the house's side of the seam, for the tests of the Messages API."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import threading
from dataclasses import dataclass, field
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from pytest_studyminimal.protocol.records import ToolDefinition, ToolResult, Usage
from pytest_studyminimal.transports import Assignment
from pytest_studyminimal.transports.messages import MessagesApi

KEY = "sk-test-0123456789abcdef0123456789"
MODEL = "claude-haiku-5-5"


def usage(**fields):
    return {"input_tokens": 1200, "output_tokens": 80, **fields}


def message(*content, stop_reason="end_turn", **fields):
    reply = {
        "id": "msg_case",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": usage(),
    }
    return {**reply, **fields}


def text(words):
    return {"type": "text", "text": words}


def tool_use(name="repo_search", tool_id="toolu_1", **arguments):
    return {"type": "tool_use", "id": tool_id, "name": name, "input": arguments}


def tools(*uses, **fields):
    return message(*uses, stop_reason="tool_use", **fields)


@dataclass(frozen=True)
class Response:
    """What a scripted provider sends; a body that is no bytes is sent as JSON."""

    body: object
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def data(self):
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple

    @property
    def json(self):
        return json.loads(self.body)


@contextlib.contextmanager
def scripted(*script):
    """Serve one response of the script after another, the last one for ever."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    provider = Provider(f"http://127.0.0.1:{server.server_port}", server)
    provider.serve([item if isinstance(item, Response) else Response(item) for item in script])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass(frozen=True)
class Provider:
    base_url: str
    server: _Server

    @property
    def received(self):
        return self.server.received

    def serve(self, script):
        """Forget what was received and start with a new script."""
        self.server.received, self.server.script = [], list(script)


class _Server(ThreadingHTTPServer):
    received: list[Received]
    script: list[Response]

    def handle_error(self, *_):
        """Clients that go away are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Keep quiet."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        received = self.server.received
        response = self.server.script[min(len(received), len(self.server.script) - 1)]
        received.append(Received(self.path, headers, body, self.client_address))
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(response.data)))
        self.end_headers()
        self.wfile.write(response.data)


@dataclass
class RawProvider:
    """A provider that is only a socket; `gone` is set when its client has closed a connection."""

    base_url: str
    accepted: list[socket.socket] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    def serve(self, connection, speak, stop, *, read_request):
        with connection:
            with contextlib.suppress(OSError):
                if read_request:
                    self.requests.append(read_one_request(connection))
                speak(connection, stop)
            with contextlib.suppress(OSError):
                connection.settimeout(5)
                while connection.recv(65536):
                    pass
            self.gone.set()


@contextlib.contextmanager
def speaking(speak, *, read_request=True):
    """Serve every connection with `speak(connection, stop)` in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    provider = RawProvider(f"http://127.0.0.1:{listener.getsockname()[1]}")
    stop = threading.Event()
    threads = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                provider.accepted.append(connection)
                serve = functools.partial(provider.serve, read_request=read_request)
                threads.append(threading.Thread(target=serve, args=(connection, speak, stop)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield provider
    finally:
        stop.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()
        for connection in provider.accepted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def read_one_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += received_from(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while len(body) < int(lines[0].split(b":")[1]):
        body += received_from(connection)
    return body


def received_from(connection):
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the client has gone")
    return data


@dataclass
class Ledger:
    """A meter that remembers; `refusals` maps the number of a reservation to what it raises."""

    refusals: dict[int, BaseException] = field(default_factory=dict)
    events: list[tuple] = field(default_factory=list)
    open: bool = False

    def reserve(self, *, request_bytes, output_tokens):
        assert not self.open
        number = 1 + sum(event[0] == "reserve" for event in self.events)
        if number in self.refusals:
            raise self.refusals[number]
        self.events.append(("reserve", request_bytes, output_tokens))
        self.open = True

    def settle(self, usage: Usage):
        assert self.open
        self.events.append(("settle", usage))
        self.open = False

    def retain(self):
        assert self.open
        self.events.append(("retain",))
        self.open = False

    @property
    def kinds(self):
        return [event[0] for event in self.events]

    @property
    def reserved_bytes(self):
        return [event[1] for event in self.events if event[0] == "reserve"]


@dataclass
class Toolbox:
    """Tools as functions of their arguments; `servers` names the server of some."""

    functions: dict = field(default_factory=dict)
    servers: dict[str, str] = field(default_factory=dict)
    called: list[tuple] = field(default_factory=list)

    @property
    def definitions(self):
        schema = {"type": "object", "properties": {"query": {"type": "string"}}}
        return tuple(
            ToolDefinition(name=name, description=f"Does {name}.", input_schema=schema)
            for name in self.functions
        )

    def server_of(self, name):
        return self.servers.get(name)

    def call(self, name, arguments, *, timeout_s):
        self.called.append((name, arguments, timeout_s))
        result = self.functions[name](arguments)
        return result if isinstance(result, ToolResult) else ToolResult(text=result)


def assignment(**fields):
    planned = {
        "model": MODEL,
        "question": "Where is the retry policy?",
        "system": None,
        "turns": 8,
        "output_tokens": 1024,
        "tools_per_turn": 20,
        "deadline_s": 10.0,
        "tool_s": 30.0,
        "stdout_bytes": 4_194_304,
        "attempt_usd": Decimal("0.10"),
    }
    return Assignment(**{**planned, **fields})


def api(base_url, **fields):
    return MessagesApi(base_url=base_url, key=KEY, temperature=Decimal(0), **fields)


def carried(*script, toolbox=None, meter=None, **limits):
    """Carry one attempt to a scripted provider; return transcript, meter and what was received."""
    meter = meter or Ledger()
    with scripted(*script) as provider:
        transcript = api(provider.base_url).carry(assignment(**limits), toolbox or Toolbox(), meter)
    assert not meter.open
    return transcript, meter, provider.received
