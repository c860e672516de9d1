"""The pipes of a stdio MCP server under the official SDK's session, for mcp 1.26 to 2.x."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import mcp
from mcp import types
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter

from pytest_studyminimal.workspace.process import Child, read_now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

LINE_BYTES = 16 * 2**20
UNREADABLE = "the answer is not valid JSON-RPC"
_WATCH_S = 0.05
_LAST_WORDS_S = 0.3
_QUOTED_BYTES = 1000
_INTERNAL_ERROR = -32603

RpcError: type[Exception] = vars(mcp).get("MCPError") or vars(mcp)["McpError"]
"""The SDK's exception for a JSON-RPC error, whose name changed in 2.0."""


class Pipes:
    """Both directions of one server's stdio. `ended` is true once no answer can come any more.

    `noise_count` counts lines on stdout that are no JSON-RPC message; `noise` is the first of them.
    With `strict`, the first such line ends the conversation, so that nobody waits for what it hid.
    `last_result` is the raw result of the last answer, to say more of one that cannot be read.
    """

    def __init__(
        self,
        child: Child,
        answers: MemoryObjectSendStream[SessionMessage | Exception],
        *,
        strict: bool,
    ) -> None:
        self.noise_count = 0
        self.noise = ""
        self.ended = False
        self.oversized = False
        self.last_result: Any = None
        self._child = child
        self._answers = answers
        self._strict = strict
        # A model in 1.x, a plain union in 2.x.
        self._adapter: TypeAdapter[Any] = TypeAdapter(types.JSONRPCMessage)
        self._asked: set[str] = set()
        self._parts: list[bytes] = []
        self._size = 0
        self._writing = anyio.CancelScope()
        self._written = anyio.Event()

    @property
    def unfinished(self) -> str:
        """The start of a line whose end has not come."""
        return b"".join(self._parts)[:_QUOTED_BYTES].decode("utf-8", "backslashreplace")

    async def read(self) -> None:
        """Pass messages on until stdout ends, a line is too long or, if `strict`, noise comes."""
        async for line in self._lines():
            message = self._message(line)
            if self._strict and self.noise_count:
                self._end()
            elif message is not None:
                with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                    await self._answers.send(SessionMessage(message))
        self._end()
        # A server that waits for room in its pipe could not see the end of its input.
        while await self._receive():
            pass

    def _end(self) -> None:
        """Fail every open request of the session, and all that would follow."""
        self.ended = True
        self._answers.close()

    async def _lines(self) -> AsyncIterator[bytes]:
        while data := await self._receive():
            *complete, rest = data.split(b"\n")
            for piece in complete:
                line = b"".join([*self._parts, piece])
                self._parts, self._size = [], 0
                yield line
            if rest:
                self._parts.append(rest)
                self._size += len(rest)
            if self._size > LINE_BYTES:
                self.oversized = True
                return
        # Half a line of a server that we ended is not its fault.
        if self._parts and not self._child.forced:
            yield b"".join(self._parts)

    async def _receive(self) -> bytes:
        while True:
            # Waiting on every chunk hands control to the loop: a flood must not stop deadlines.
            await anyio.wait_readable(self._child.stdout)
            data = read_now(self._child.stdout)
            if data is not None:
                return data

    def _message(self, line: bytes) -> Any:
        text = line.decode("utf-8", "replace")
        if not text.strip():
            return None
        try:
            message = self._adapter.validate_json(text, by_name=False)
        except ValueError:
            return self._unreadable(line, text)
        content = getattr(message, "root", message)
        if isinstance(content, types.JSONRPCNotification):
            return None
        if isinstance(content, (types.JSONRPCResponse, types.JSONRPCError)):
            # 1.x prints a warning of its own about an answer to a question that nobody asked.
            if str(content.id) not in self._asked:
                return None
            self.last_result = getattr(content, "result", None)
        return message

    def _unreadable(self, line: bytes, text: str) -> Any:
        """An answer that breaks the protocol fails its call at once; anything else is noise."""
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            if (
                isinstance(found, dict)
                and str(found.get("id")) in self._asked
                and "method" not in found
            ):
                error = {"code": _INTERNAL_ERROR, "message": UNREADABLE}
                return self._adapter.validate_python(
                    {"jsonrpc": "2.0", "id": found["id"], "error": error}
                )
        self.noise_count += 1
        self.noise = self.noise or line[:_QUOTED_BYTES].decode("utf-8", "backslashreplace")
        return None

    async def write(self, source: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Send messages until the session or the server closes, then close the server's stdin."""
        try:
            with self._writing:
                async for sent in source:
                    content = getattr(sent.message, "root", sent.message)
                    if isinstance(content, types.JSONRPCRequest):
                        self._asked.add(str(content.id))
                    text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                    await self._send(text.encode() + b"\n")
        except OSError:
            self._end()
        finally:
            self._child.close_stdin()
            self._written.set()

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await anyio.wait_writable(self._child.stdin)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._child.stdin, view) :]

    async def finish_writing(self) -> None:
        """Stop writing and close the server's stdin."""
        self._writing.cancel()
        await self._written.wait()

    async def read_stderr(self) -> None:
        """Keep stderr flowing; only its tail is kept."""
        while self._child.read_stderr():
            await anyio.wait_readable(self._child.stderr)

    async def watch(self) -> None:
        """Notice the server's death also where a grandchild holds its stdout open."""
        while self._child.status() is None:  # noqa: ASYNC110 - a process sets no event
            await anyio.sleep(_WATCH_S)
        await anyio.sleep(_LAST_WORDS_S)
        self._end()


@dataclass
class Link:
    """A started server with its session. `grace_s` is how long it may take to end when told so."""

    child: Child
    pipes: Pipes
    session: Any
    grace_s: float


@contextlib.asynccontextmanager
async def connect(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], strict: bool, grace_s: float
) -> AsyncIterator[Link]:
    """Start a server and open a session over its pipes; nothing has been said yet.

    Raises OSError or ValueError where it cannot start. Leaving ends it and its descendants.
    """
    _silence()
    # In the event loop's thread: no KeyboardInterrupt can strike between the fork and the `try`.
    child = Child(argv, cwd=cwd, env=env)
    try:
        async with _linked(child, strict=strict, grace_s=grace_s) as link:
            yield link
    finally:
        child.stop()
        child.close()


@contextlib.asynccontextmanager
async def _linked(child: Child, *, strict: bool, grace_s: float) -> AsyncIterator[Link]:
    answers_in, answers = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    pipes = Pipes(child, answers_in, strict=strict)
    # Without a bound: a server that does not read must not block the session, which would then
    # wait 5 s more for room to say that a call was cancelled (measured on 2026-11-30, mcp 2.3.0).
    requests, requests_out = anyio.create_memory_object_stream[SessionMessage](math.inf)
    with answers_in, answers, requests, requests_out:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipes.read)
            tasks.start_soon(pipes.write, requests_out)
            tasks.start_soon(pipes.read_stderr)
            tasks.start_soon(pipes.watch)
            link = Link(child, pipes, None, grace_s)
            try:
                async with mcp.ClientSession(answers, requests) as link.session:
                    yield link
            finally:
                with anyio.CancelScope(shield=True):
                    await pipes.finish_writing()
                    # In another thread, so that its output keeps flowing while it ends.
                    await anyio.to_thread.run_sync(child.stop, link.grace_s)
                tasks.cancel_scope.cancel()


def _silence() -> None:
    """Keep the SDK's loggers from logging's last resort, which prints to stderr."""
    for name in ("mcp", "client", "asyncio"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
