"""What a server must show before it may be offered: each check refuses with one line."""

from __future__ import annotations

import hashlib
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import ServerError
from pytest_studyminimal.workspace import results
from pytest_studyminimal.workspace.failures import Failure, why
from pytest_studyminimal.workspace.hiding import Hider
from pytest_studyminimal.workspace.places import environment
from pytest_studyminimal.workspace.process import ending, run, shown
from pytest_studyminimal.workspace.toolnames import schema_problem, wire_map

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_studyminimal.protocol.records import ToolDefinition
    from pytest_studyminimal.protocol.study import Limits, Server
    from pytest_studyminimal.workspace.places import Places
    from pytest_studyminimal.workspace.sessions import Greeting, Session

_VERSION_BYTES = 4096
_LONGEST_LINE = 200
_REQUIRED = {
    "spawn": "a program that can be started",
    "start": "a server that keeps running",
    "timeout": "an answer in time",
    "noise": "nothing but MCP messages",
    "tools": "a list of tools",
    "answer": "a session",
    "ready": "a result without error",
}


def prepared(spec: Server, places: Places, *, strict: bool) -> Session:
    """Return a session of the server, not started. Raises ServerError (`spawn`)."""
    # The SDK takes most of a second to import (measured on 2026-12-01): only where it is used.
    from pytest_studyminimal.workspace.sessions import Session  # noqa: PLC0415

    cwd = Path(places.study, places.expand(spec.cwd))
    if not _is_folder(cwd):
        raise ServerError(
            "spawn", f"found no folder {shown(str(cwd), 200)}, required one to start in (cwd)"
        )
    argv = [places.expand(part) for part in spec.argv]
    env = environment(spec, places, forbidden=frozenset())
    return Session(argv, cwd=cwd, env=env, strict=strict, hide=hider(spec, places))


def _is_folder(path: Path) -> bool:
    # Only some errors are swallowed by pathlib; a name too long is not.
    try:
        return path.is_dir()
    except OSError:
        return False


def hider(spec: Server, places: Places) -> Hider:
    """Return what hides the values that the manifest names or gives. Raises ServerError."""
    env = environment(spec, places, forbidden=frozenset())
    return Hider(env[name] for name in (*spec.pass_env, *spec.env))


@contextmanager
def refusals(server_id: str) -> Iterator[None]:
    """Name the server in every refusal."""
    try:
        yield
    except ServerError as error:
        raise ServerError(error.kind, f"servers.{server_id}: {error}") from None
    except OSError as error:
        raise ServerError(
            "spawn",
            f"servers.{server_id}: found {why(error)}, required {_REQUIRED['spawn']}",
        ) from None


@contextmanager
def alive(session: Session, *, keep: bool = False) -> Iterator[None]:
    """Start the session; stop it on any failure, and at the end unless `keep`.

    A failure is told with what the process left behind, which is complete only after its end.
    """
    try:
        session.start()
        yield
    except Failure as failure:
        session.give_up()
        kind = "start" if failure.kind == "answer" else failure.kind
        raise ServerError(kind, _told(session, failure)) from None
    except BaseException:
        session.give_up()
        raise
    if not keep:
        session.stop()


def _told(session: Session, failure: Failure) -> str:
    rest = session.diagnosis()
    found = f"{failure.found} ({rest})" if rest else failure.found
    return f"found {found}, required {_REQUIRED[failure.kind]}"


def opened(
    session: Session, mode: str | None, start_s: float
) -> tuple[Greeting, tuple[ToolDefinition, ...]]:
    """Negotiate and list within `start_s` together. Raises Failure."""
    until = time.monotonic() + start_s
    greeting = session.greet(mode, start_s)
    with _answers_as("tools"):
        return greeting, session.tools(max(0.0, until - time.monotonic()))


@contextmanager
def _answers_as(kind: str) -> Iterator[None]:
    """Give a Failure over an unusable answer the kind of the stage that asked."""
    try:
        yield
    except Failure as failure:
        if failure.kind != "answer":
            raise
        raise Failure(kind, failure.found) from None


def check_names(spec: Server, tools: tuple[ToolDefinition, ...]) -> None:
    """Refuse (`tools`) an allowed tool that is not listed exactly once."""
    listed = [tool.name for tool in tools]
    if missing := [name for name in spec.allow if name not in listed]:
        raise ServerError(
            "tools",
            f"found no tool {', '.join(missing)} in tools/list, required every allowed tool",
        )
    if twice := [name for name in spec.allow if listed.count(name) > 1]:
        raise ServerError(
            "tools", f"found {', '.join(twice)} more than once in tools/list, required once"
        )


def check_tools(
    server_id: str, spec: Server, tools: tuple[ToolDefinition, ...], hide: Hider
) -> None:
    """Refuse (`tools`) allowed tools that a model provider would not take as they are."""
    check_names(spec, tools)
    wire_map(((server_id, name) for name in spec.allow), reserved=())
    schemas = {tool.name: tool.input_schema for tool in tools}
    for name in spec.allow:
        if problem := schema_problem(schemas[name]):
            raise ServerError(
                "tools",
                f"tool {name}: found {hide(problem)}, required a schema that model providers accept",
            )


def check_ready(session: Session, spec: Server, limits: Limits) -> None:
    """Make the readiness call within `limits.tool_s`. Raises Failure."""
    with _answers_as("ready"):
        plain = session.call(spec.ready.tool, spec.ready.arguments, limits.tool_s, public=True)
    answer = results.of_call(plain, limits.tool_result_bytes)
    if answer.is_error:
        told = shown(session.hide(answer.text), 300)
        raise Failure("ready", f"{spec.ready.tool} failed with {told}")


def hashes(spec: Server, places: Places) -> dict[str, str]:
    """Return the SHA-256 of every identity file by its entry. Raises ServerError (`identity`)."""
    return {label: _sha256(label, places) for label in spec.identity}


def check_identity(spec: Server, places: Places, identity: dict[str, str]) -> None:
    """Refuse (`identity`) a server whose files are not those that preflight hashed."""
    if hashes(spec, places) != identity:
        raise ServerError("identity", "found a changed identity file, required that of preflight")


def _sha256(label: str, places: Places) -> str:
    file = Path(places.study, places.expand(label))
    try:
        if not file.is_file():
            raise ServerError(
                "identity", f"identity {shown(label, 200)}: found no file, required one to hash"
            )
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ServerError(
            "identity", f"identity {shown(label, 200)}: found {error.strerror}, required a file"
        ) from None


def printed_version(spec: Server, places: Places, limits: Limits) -> str | None:
    """Return the first line that the version program prints, None where there is no program.

    Raises ServerError (`identity`) unless it exits with 0 within `limits.start_s`.
    """
    if not spec.version:
        return None
    try:
        done = run(
            [places.expand(part) for part in spec.version],
            cwd=Path(places.study, places.expand(spec.cwd)),
            env=environment(spec, places, forbidden=frozenset()),
            timeout_s=limits.start_s,
            max_bytes=_VERSION_BYTES,
        )
    except (OSError, ValueError) as error:
        raise _no_version(why(error)) from None
    hide = hider(spec, places)
    line = next(iter(hide(done.stdout).strip().splitlines()), "").strip()
    if done.timed_out:
        raise _no_version(f"no end within {limits.start_s} s")
    if done.returncode != 0 or not line:
        tail = shown(hide(done.stderr_tail).strip()[-300:], 300)
        raise _no_version(
            f"{ending(done.returncode)}, the line {shown(line, 80)} and {tail} on stderr"
        )
    return line[:_LONGEST_LINE]


def _no_version(found: str) -> ServerError:
    return ServerError(
        "identity", f"version: found {found}, required a program that prints a version and exits 0"
    )
