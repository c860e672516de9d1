"""One bounded HTTP exchange after another on a kept connection; the key never leaves this file."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import httpx

if TYPE_CHECKING:
    import ssl

LARGEST_BODY_BYTES = 8 * 2**20
_ENDING_S = 0.5
# Sockets refuse a timeout beyond a C int of milliseconds, 24 days; the total one is ours.
_LONGEST_SOCKET_WAIT_S = 86_400.0
# Short keys are placeholders, and hiding a common word would change what a model is called.
_SHORTEST_HIDDEN_KEY = 16


class Secret:
    """A key that no repr, format or traceback shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def __repr__(self) -> str:
        return "Secret(…)"

    def reveal(self) -> str:
        """Return the key, for a header and for nothing else."""
        return self._value

    def hide(self, text: str) -> str:
        """Return `text` without the key, should a provider have echoed it."""
        if len(self._value) < _SHORTEST_HIDDEN_KEY:
            return text
        return text.replace(self._value, "[key]")


@dataclass(frozen=True)
class Answered:
    """A response that was received to its end."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Lost:
    """No usable response: one public line, and whether the deadline cut it."""

    problem: str
    expired: bool = False


class _AbandonedError(Exception):
    """The attempt is over: this connection must not be used."""


class Line:
    """One attempt's connection to its provider: no redirects, cookies, proxies or retries.

    httpx's timeouts count per read, so a drip of one byte a second outlives any of them. Each
    exchange therefore runs in a thread of its own, and the caller waits for it in total: neither a
    name server nor a handshake, a header or an endless body can hold the caller longer.
    """

    def __init__(self, url: str, key: Secret, version: str, tls: ssl.SSLContext) -> None:
        self._url = url
        self._key = key
        self._version = version
        self._http = httpx.HTTPTransport(verify=tls, trust_env=False)
        self._socket: socket.socket | None = None
        self._abandoned = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, body: bytes, *, within_s: float) -> Answered | Lost:
        """Send `body` and return what came back within `within_s` seconds in total.

        A line is dead once its time ran out or its caller was interrupted.
        """
        box: queue.SimpleQueue[Answered | Lost] = queue.SimpleQueue()
        thread = threading.Thread(
            target=self._exchange, args=(body, within_s, box), name="messages-api", daemon=True
        )
        outcome: Answered | Lost | None = None
        try:
            thread.start()
            outcome = box.get(timeout=max(within_s, 0.0))
        except queue.Empty:
            return Lost("the deadline passed", expired=True)
        finally:
            if outcome is None:
                self._abandon(thread)
        return outcome

    def _abandon(self, thread: threading.Thread) -> None:
        self._abandoned.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Closing does not wake a thread that is blocked in recv; shutting down does.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        with contextlib.suppress(RuntimeError):  # interrupted before it was started
            thread.join(_ENDING_S)

    def _exchange(
        self, body: bytes, within_s: float, box: queue.SimpleQueue[Answered | Lost]
    ) -> None:
        # Nothing may escape: the frames below this one hold the headers, and with them the key.
        try:
            outcome = self._send(body, min(within_s + 1.0, _LONGEST_SOCKET_WAIT_S))
        except Exception as error:  # noqa: BLE001
            outcome = Lost(f"the exchange failed ({type(error).__name__})")
        box.put(outcome)

    def _send(self, body: bytes, wait_s: float) -> Answered | Lost:
        response = self._http.handle_request(
            httpx.Request(
                "POST",
                self._url,
                headers={
                    "accept": "application/json",
                    "accept-encoding": "identity",
                    "anthropic-version": self._version,
                    "content-type": "application/json",
                    "x-api-key": self._key.reveal(),
                },
                content=body,
                extensions={"timeout": httpx.Timeout(wait_s).as_dict(), "trace": self._watch},
            )
        )
        with contextlib.closing(response):
            return _received(response)

    def _watch(self, event: str, info: dict[str, Any]) -> None:
        if event not in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            return
        stream = info["return_value"]
        self._socket = stream.get_extra_info("socket")
        if self._abandoned.is_set():
            # A name or a handshake that came too late: nothing paid may follow.
            stream.close()
            raise _AbandonedError


def _received(response: httpx.Response) -> Answered | Lost:
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            return _TOO_LARGE
    return _decoded(response.status_code, bytes(body), response.headers.get("content-encoding", ""))


def _decoded(status: int, body: bytes, coding: str) -> Answered | Lost:
    # Only identity was asked for. A single zlib layer is still read, bounded; httpx would unpack
    # any number of nested layers at whatever size they have.
    coding = coding.strip().lower()
    if coding in {"", "identity"}:
        return Answered(status, body)
    if coding not in {"gzip", "x-gzip", "deflate"}:
        return Lost("the response is encoded in a way that was not asked for")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = unpacker.decompress(body, LARGEST_BODY_BYTES + 1)
    except zlib.error:
        return Lost("the response cannot be decompressed")
    if len(plain) > LARGEST_BODY_BYTES:
        return _TOO_LARGE
    return Answered(status, plain) if unpacker.eof else Lost("the response cannot be decompressed")


_TOO_LARGE = Lost(f"the response is larger than {LARGEST_BODY_BYTES // 2**20} MiB")
