"""MCP servers: preflight before any money, and one fresh process for every attempt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, TypeAdapter

from pytest_studyminimal.protocol.errors import ServerError
from pytest_studyminimal.protocol.frozen import Frozen
from pytest_studyminimal.protocol.records import ToolDefinition, ToolResult
from pytest_studyminimal.workspace import results
from pytest_studyminimal.workspace.failures import Failure
from pytest_studyminimal.workspace.places import environment
from pytest_studyminimal.workspace.readiness import (
    alive,
    check_identity,
    check_names,
    check_ready,
    check_tools,
    hashes,
    opened,
    prepared,
    printed_version,
    refusals,
)
from pytest_studyminimal.workspace.toolnames import wire_map, wire_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from pytest_studyminimal.protocol.study import Limits, Server
    from pytest_studyminimal.workspace.places import Places
    from pytest_studyminimal.workspace.sessions import Greeting, Session


class ServerFacts(Frozen):
    """What preflight learnt of a server, and what every attempt's server must equal.

    `tools_json` is one text, since a ledger sorts the keys of objects and rewrites large numbers,
    and a model must see the same bytes in every process. `identity` maps each entry of the
    manifest, as written, to the SHA-256 of its file; `version_line` is the first line of what the
    version program printed. `reachable` says by task whether each source can be reached: yes, no or
    unknown.
    """

    mode: str
    protocol_version: str | None
    name: str | None
    version: str | None
    version_line: str | None
    tools_json: str
    identity: dict[str, str]
    reachable: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @cached_property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """All listed tools under their exact MCP names, in their order."""
        return _TOOLS.validate_python(tuple(json.loads(self.tools_json)))


_TOOLS = TypeAdapter(tuple[ToolDefinition, ...])


def verbatim(tools: Iterable[ToolDefinition]) -> str:
    """Return tools as JSON in the order given, their schemas' keys included.

    Raises Failure (`tools`) where JSON cannot hold them.
    """
    try:
        return json.dumps([tool.model_dump() for tool in tools])
    except (ValueError, RecursionError) as error:
        raise Failure("tools", f"a schema that is no JSON ({type(error).__name__})") from None


def preflight(
    server_id: str,
    spec: Server,
    places: Places,
    limits: Limits,
    *,
    forbidden: frozenset[str] = frozenset(),
    probe: Probe | None = None,
) -> ServerFacts:
    """Start the server, list its tools, make the readiness call and stop it; nothing is spent.

    `forbidden` are names of variables that no server may get. `probe` may call the allowed tools of
    the ready server and returns what the facts hold as reachable. Takes at most `limits.start_s` for
    start and list, `limits.tool_s` for the call, `limits.start_s` for the version program and a few
    seconds for the end. Raises ServerError with one line.
    """
    with refusals(server_id):
        environment(spec, places, forbidden=forbidden)
        identity = hashes(spec, places)
        version_line = printed_version(spec, places, limits)
        session = prepared(spec, places, strict=True)
        with alive(session):
            greeting, tools = opened(session, None, limits.start_s)
            check_tools(server_id, spec, tools, session.hide)
            check_ready(session, spec, limits)
            tools_json = verbatim(tools)
            reachable = _probed(session, spec, tools, limits, probe)
        if noise := session.noise():
            raise ServerError("noise", f"found {noise}, required nothing but MCP messages")
    return ServerFacts(
        mode=greeting.mode,
        protocol_version=greeting.protocol_version,
        name=greeting.name and session.hide(greeting.name),
        version=greeting.version and session.hide(greeting.version),
        version_line=version_line,
        tools_json=tools_json,
        identity=identity,
        reachable=reachable,
    )


Probe = Callable[
    [tuple[ToolDefinition, ...], Callable[[str, dict[str, Any]], ToolResult | None]],
    Mapping[str, tuple[str, ...]],
]


def _probed(
    session: Session,
    spec: Server,
    tools: tuple[ToolDefinition, ...],
    limits: Limits,
    probe: Probe | None,
) -> dict[str, tuple[str, ...]]:
    def call(name: str, arguments: dict[str, Any]) -> ToolResult | None:
        try:
            plain = session.call(name, arguments, limits.tool_s, public=False)
        except Failure as failure:
            answered = failure.kind == "answer"
            return ToolResult(text="", is_error=True) if answered else None
        return results.of_call(plain, limits.tool_result_bytes)

    allowed = tuple(tool for tool in tools if tool.name in spec.allow)
    return {} if probe is None else dict(probe(allowed, call))


def definitions(
    server_id: str, spec: Server, facts: ServerFacts
) -> tuple[tuple[ToolDefinition, str], ...]:
    """Return the allowed tools in the manifest's order, each with its exact name."""
    by_name = {tool.name: tool for tool in facts.tools}
    wire_map(((server_id, name) for name in spec.allow), reserved=())
    return tuple(
        (by_name[name].model_copy(update={"name": wire_name(name)}), name) for name in spec.allow
    )


class RunningServer:
    """One attempt's server; a context manager. Starting raises ServerError, calling never does.

    At its start it must list the allowed tools with the names and schemas of `facts`.
    """

    def __init__(
        self, server_id: str, spec: Server, places: Places, facts: ServerFacts, limits: Limits
    ) -> None:
        self._id = server_id
        self._spec = spec
        self._places = places
        self._facts = facts
        self._limits = limits
        self._session: Session | None = None

    def start(self) -> Self:
        """Start the process and compare its tools with preflight. Raises ServerError."""
        with refusals(self._id):
            session = self._session = prepared(self._spec, self._places, strict=False)
            with alive(session, keep=True):
                greeting, tools = opened(session, self._facts.mode, self._limits.start_s)
                self._compare(tools)
                self._compare_version(greeting, session.hide)
        return self

    def _compare_version(self, greeting: Greeting, hide: Callable[[str], str]) -> None:
        seen = [greeting.name and hide(greeting.name), greeting.version and hide(greeting.version)]
        if seen != [self._facts.name, self._facts.version]:
            raise ServerError(
                "identity", "found another name or version, required those of preflight"
            )
        check_identity(self._spec, self._places, self._facts.identity)

    def _compare(self, tools: tuple[ToolDefinition, ...]) -> None:
        check_names(self._spec, tools)
        now, then = (
            {tool.name: tool.input_schema for tool in group} for group in (tools, self._facts.tools)
        )
        for name in self._spec.allow:
            if now[name] != then.get(name):
                raise ServerError(
                    "tools", f"found another schema of {name!r}, required that of preflight"
                )

    def call(self, tool: str, arguments: dict[str, Any], *, timeout_s: float) -> ToolResult:
        """Call a tool by its exact name; a failure of the server is an error result of one line.

        Text above `limits.tool_result_bytes` is cut, with a mark inside it and `original_bytes`.
        """
        if self._session is None or tool not in self._spec.allow:
            return results.error(f"{tool}: not available", self._limits.tool_result_bytes)
        try:
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
            plain = self._session.call(tool, arguments, timeout_s, public=False)
        except Failure as failure:
            return results.error(failure.found, self._limits.tool_result_bytes)
        except (ValueError, TypeError, RecursionError):
            return results.error(
                f"{tool}: the arguments are not valid JSON", self._limits.tool_result_bytes
            )
        return results.of_call(plain, self._limits.tool_result_bytes)

    def stop(self) -> None:
        """End the process and its descendants. Idempotent; calls after it are error results."""
        if self._session is not None:
            self._session.stop()

    @property
    def pid(self) -> int:
        """The id of the process, its group and its session."""
        assert self._session is not None
        return self._session.link.child.pid

    @property
    def noise_count(self) -> int:
        """How many lines on stdout were no messages so far."""
        return 0 if self._session is None else self._session.link.pipes.noise_count

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
