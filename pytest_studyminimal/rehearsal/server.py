"""A provider on loopback that speaks the Messages API and costs nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from pytest_studyminimal.protocol.errors import ProviderError
from pytest_studyminimal.rehearsal.checks import InvalidRequestError
from pytest_studyminimal.rehearsal.replies import checked, reply_to
from pytest_studyminimal.rehearsal.streaming import events_of

_LARGEST_REQUEST_BYTES = 32 * 2**20
_PATH = "/v1/messages"


class RehearsalProvider:
    """The rehearsal's provider: a context manager with the `base_url` to send requests to.

    Replies are a function of the request alone: usage follows the bytes and ids are hashes, so that
    two runs with equal requests count equal tokens. A request may ask for a stream. Entering raises
    ProviderError where loopback cannot be listened on.
    """

    def __init__(self) -> None:
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        try:
            self._server = _Server()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise ProviderError(
                f"the rehearsal provider cannot listen on loopback: {why}"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.05},
            name="rehearsal-provider",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def base_url(self) -> str:
        """Where the API is served, `http://127.0.0.1:<port>`."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def requests_served(self) -> int:
        """How many requests were answered, refusals included."""
        assert self._server is not None
        return self._server.requests_served


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests_served = 0
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()

    def server_bind(self) -> None:
        # HTTPServer asks a name server for its own name here, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        with self._lock:
            self._connections.add(connection)
        return connection, address

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._connections.discard(request)
        super().close_request(request)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is not worth a line on stderr."""

    def count(self) -> None:
        with self._lock:
            self.requests_served += 1


class _Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"type": "error", "error": {"type": kind, "message": message}}


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""

    def do_POST(self) -> None:
        try:
            body = self._body()
            self._check_envelope()
            request = self._checked(body)
        except _Refusal as refusal:
            self._answer(refusal.status, refusal.body)
            return
        reply = reply_to(body, request)
        if request.get("stream"):
            self._stream(reply)
        else:
            self._answer(200, reply)

    def do_GET(self) -> None:
        refusal = (
            _Refusal(405, "invalid_request_error", "Method Not Allowed")
            if self._route() == _PATH
            else _Refusal(404, "not_found_error", "Not found")
        )
        # A body that nobody reads would be taken for the next request.
        if "content-length" in self.headers or "transfer-encoding" in self.headers:
            try:
                self._body()
            except _Refusal as unreadable:
                refusal = unreadable
        self._answer(refusal.status, refusal.body)

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815

    def _route(self) -> str:
        return self.path.partition("?")[0]

    def _body(self) -> bytes:
        length = self.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit():
            self.close_connection = True
            raise _Refusal(411, "invalid_request_error", "content-length is required")
        if int(length) > _LARGEST_REQUEST_BYTES:
            self.close_connection = True
            raise _Refusal(413, "request_too_large", "Request exceeds the maximum size")
        return self.rfile.read(int(length))

    def _check_envelope(self) -> None:
        if self._route() != _PATH:
            raise _Refusal(404, "not_found_error", "Not found")
        if not (self.headers.get("x-api-key") or self._bearer()):
            raise _Refusal(401, "authentication_error", "x-api-key header is required")
        if not self.headers.get("anthropic-version"):
            raise _Refusal(400, "invalid_request_error", "anthropic-version: header is required")

    def _bearer(self) -> str:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def _checked(self, body: bytes) -> dict[str, Any]:
        try:
            return checked(body, beta=bool(self.headers.get("anthropic-beta")))
        except InvalidRequestError as error:
            raise _Refusal(400, "invalid_request_error", str(error)) from None

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        self.server.count()
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, reply: dict[str, Any]) -> None:
        self.server.count()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events_of(reply):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
