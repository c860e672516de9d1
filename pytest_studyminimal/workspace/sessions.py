"""One started MCP server, driven from synchronous code: every failure has a kind."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.from_thread
from mcp import types

from pytest_studyminimal.protocol.records import ToolDefinition
from pytest_studyminimal.workspace.failures import Failure, described, is_an_answer, why
from pytest_studyminimal.workspace.process import ending, shown
from pytest_studyminimal.workspace.transport import LINE_BYTES, Link, RpcError, connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_studyminimal.workspace.hiding import Hider

LEGACY = "legacy"
_GRACE_S = 2.0
_HUNG_GRACE_S = 0.5
_EXIT_S = 0.5
_LAST_WORDS_S = 0.1
_MOST_PAGES = 100
_MOST_TOOLS = 1000
_T = TypeVar("_T")


@dataclass(frozen=True)
class Greeting:
    """What was negotiated: `mode` is `legacy` (initialize) or a version from server/discover."""

    mode: str
    protocol_version: str | None
    name: str | None
    version: str | None


class Session:
    """A server in its own process with its own event loop thread; `stop` is idempotent.

    With `strict`, a line on stdout that is no message ends the session: a Failure of kind noise.
    `hide` is applied to what the server says before it is quoted in a public line.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        strict: bool,
        hide: Hider,
    ) -> None:
        self.hide = hide
        self._connect = partial(connect, argv, cwd=cwd, env=env, strict=strict, grace_s=_GRACE_S)
        self._strict = strict
        self._stack = contextlib.ExitStack()
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._link: Link | None = None

    def start(self) -> None:
        """Start the process; nothing is said to it. Raises Failure (`spawn`)."""
        with contextlib.ExitStack() as stack:
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal("asyncio"))
            manager = portal.wrap_async_context_manager(self._connect())
            try:
                self._link = manager.__enter__()
            except (OSError, ValueError) as error:
                raise Failure("spawn", why(error)) from None
            # Never with the exception: an interrupt must not be thrown into the event loop.
            stack.callback(manager.__exit__, None, None, None)
            self._portal = portal
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """End the process and its descendants: about 0.05 s for a polite one, 5 s at most."""
        self._portal = None
        if self._link is not None and self._link.pipes.ended:
            self._link.grace_s = 0.0
        self._stack.close()

    def give_up(self) -> None:
        """Stop without the grace of a polite end."""
        if self._link is not None:
            self._link.grace_s = 0.0
        self.stop()

    @property
    def link(self) -> Link:
        """The process and its pipes, also after `stop`; only after `start`."""
        assert self._link is not None
        return self._link

    def greet(self, mode: str | None, timeout_s: float) -> Greeting:
        """Negotiate as `mode` says; None tries initialize, and server/discover where it is refused.

        Measured on 2026-11-30: initialize first costs nothing where it works, which is with every
        server tried; discover first costs 10 s with a server that ignores unknown methods.
        """
        return self._ask("initialize", partial(_greet, mode=mode), timeout_s)

    def tools(self, timeout_s: float) -> tuple[ToolDefinition, ...]:
        """Return the tools of all pages of tools/list, under their exact names."""
        return self._ask("tools/list", partial(_list, hide=self.hide), timeout_s)

    def call(
        self, tool: str, arguments: Mapping[str, Any], timeout_s: float, *, public: bool
    ) -> dict[str, Any]:
        """Return the plain result of tools/call, with the wire's own field names.

        Unless `public`, a Failure is for the model alone and quotes the server as it is.
        """
        work = partial(_call, tool=tool, arguments=dict(arguments))
        return self._ask(tool, work, timeout_s, public=public)

    def _ask(
        self,
        what: str,
        work: Callable[[Any], Awaitable[_T]],
        timeout_s: float,
        *,
        public: bool = True,
    ) -> _T:
        if self._portal is None:
            raise Failure("start", "the server was stopped")
        if self.link.pipes.ended:
            raise self._failure(what, None, timeout_s, public=public)
        future = self._portal.start_task_soon(self._bounded, work, timeout_s)
        try:
            answer: _T = future.result()
        except Exception as error:  # noqa: BLE001 - the SDK lets many kinds through, see `_failure`
            if isinstance(error, TimeoutError):
                self.link.grace_s = _HUNG_GRACE_S
            raise self._failure(what, error, timeout_s, public=public) from None
        except BaseException:
            # Interrupted: whatever the server is doing, nobody waits for it.
            self.link.grace_s = 0.0
            future.cancel()
            raise
        self.link.grace_s = _GRACE_S
        return answer

    async def _bounded(self, work: Callable[[Any], Awaitable[_T]], timeout_s: float) -> _T:
        with anyio.fail_after(max(timeout_s, 0.0)):
            return await work(self.link.session)

    def _failure(
        self, what: str, error: Exception | None, timeout_s: float, *, public: bool
    ) -> Failure:
        if isinstance(error, Failure):
            return error
        pipes = self.link.pipes
        if self._strict and (noise := self.noise()):
            status = self.link.child.wait(_LAST_WORDS_S)
            # Noise closes the server's stdin, after which a polite one exits with 0.
            return Failure("noise", f"{noise}; {ending(status)}" if status else noise)
        if pipes.oversized:
            return Failure(
                "start", f"a line above {LINE_BYTES // 2**20} MiB in place of an answer to {what}"
            )
        if pipes.ended and not is_an_answer(error):
            status = self.link.child.wait(_EXIT_S)
            how = (
                "the server closed its output" if status is None else f"it ended, {ending(status)}"
            )
            return Failure("start", f"no answer to {what}: {how}")
        if isinstance(error, TimeoutError):
            return Failure("timeout", f"no answer to {what} within {timeout_s:.3g} s")
        told = described(error, pipes.last_result, self.hide if public else str)
        return Failure("answer", f"{what} answered with {told}")

    def noise(self) -> str | None:
        """Return what was on stdout beside messages, quoted; None where there was nothing."""
        pipes = self.link.pipes
        text = pipes.noise
        if not text and not pipes.unfinished.lstrip().startswith("{"):
            text = pipes.unfinished
        return f"text on stdout that is no message: {shown(self.hide(text), 200)}" if text else None

    def diagnosis(self) -> str:
        """Return the tail of stderr, quoted; complete only after `stop`."""
        tail = self.hide(self._link.child.stderr_tail).strip() if self._link else ""
        return f"stderr ends in {shown(tail[-300:], 300)}" if tail else ""


async def _greet(session: Any, *, mode: str | None) -> Greeting:
    if mode not in {None, LEGACY}:
        return await _discover(session)
    try:
        result = (await session.initialize()).model_dump(by_alias=True, mode="json")
    except RpcError:
        # 1.x cannot discover. A dead server fails again at once.
        if mode == LEGACY or not hasattr(session, "discover"):
            raise
        with contextlib.suppress(RpcError):
            return await _discover(session)
        raise
    info = result.get("serverInfo") or {}
    return Greeting(LEGACY, result.get("protocolVersion"), info.get("name"), info.get("version"))


async def _discover(session: Any) -> Greeting:
    await session.discover()
    info = session.server_info
    version = session.protocol_version
    return Greeting(version, version, info and info.name, info and info.version)


async def _list(session: Any, *, hide: Hider) -> tuple[ToolDefinition, ...]:
    tools: list[ToolDefinition] = []
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(_MOST_PAGES):
        params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
        page = (await session.list_tools(params=params)).model_dump(by_alias=True, mode="json")
        tools += [
            ToolDefinition(
                name=tool["name"],
                description=tool.get("description") or "",
                input_schema=tool["inputSchema"],
            )
            for tool in page["tools"]
        ]
        cursor = page.get("nextCursor")
        if not cursor:
            return tuple(tools)
        if cursor in seen:
            raise Failure("tools", f"tools/list gave the cursor {shown(hide(cursor), 80)} twice")
        if len(tools) > _MOST_TOOLS:
            raise Failure("tools", f"tools/list gave more than {_MOST_TOOLS} tools")
        seen.add(cursor)
    raise Failure("tools", f"tools/list gave more than {_MOST_PAGES} pages")


async def _call(session: Any, *, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await session.call_tool(tool, arguments)
    plain: dict[str, Any] = result.model_dump(by_alias=True, mode="json")
    return plain
