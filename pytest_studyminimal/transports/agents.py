"""The agent CLI itself, before any money: where it is, which build, and whether it is logged in."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import AgentError, UsageRefusedError
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.workspace.places import inherited
from pytest_studyminimal.workspace.process import Finished, ending, run, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_studyminimal.protocol.study import Connection

COMMANDS = {"claude-code": "claude"}
"""The program of each agent transport, as it is found on PATH."""

_PACKAGES = {"claude-code": "@anthropic-ai/claude-code"}
_TITLES = {"claude-code": "Claude Code"}
_PROBE_S = 30.0
_PROBE_BYTES = 65_536


@dataclass(frozen=True)
class Agent:
    """A probed CLI: its program, the version that it printed, and the SHA-256 of its file."""

    program: Path
    version: str
    sha256: str


def agent_options(options: Sequence[str]) -> dict[str, str]:
    """Return PATH by transport of `--study-agent TRANSPORT=PATH`; UsageRefusedError for other text."""
    found = {}
    for option in options:
        name, separator, path = option.partition("=")
        if not separator or not path or name not in COMMANDS:
            raise UsageRefusedError(
                f"--study-agent: found {one_line(option, 80)!r}, required TRANSPORT=PATH with TRANSPORT"
                f" one of {', '.join(COMMANDS)}"
            )
        found[name] = path
    return found


def find_program(
    connection: Connection, options: Mapping[str, str], environ: Mapping[str, str], cwd: Path
) -> Path:
    """Return the CLI's program: the option's, else the one on PATH. AgentError names how to get it."""
    name = connection.transport
    stated = options.get(name)
    if stated is None:
        on_path = shutil.which(COMMANDS[name], path=environ.get("PATH"))
        if on_path is None:
            raise AgentError(f"{name}: found no {COMMANDS[name]} on PATH, {_required(connection)}")
        return Path(on_path).absolute()
    found = "no program"
    try:
        path = (cwd / Path(stated).expanduser()).absolute()
        if path.is_file():
            found = "a file that may not be executed"
        if shutil.which(str(path)) is not None:
            return path
    except (RuntimeError, ValueError, OSError):
        pass
    option = f"--study-agent {name}={one_line(stated, 120)}"
    raise AgentError(f"{option}: found {found}, {_required(connection)}")


def _required(connection: Connection) -> str:
    name = connection.transport
    return (
        f"required {_TITLES[name]} {connection.version}:"
        f" npm install --prefix FOLDER {_PACKAGES[name]}@{connection.version}, then --study-agent"
        f" {name}=FOLDER/node_modules/.bin/{COMMANDS[name]}"
    )


def agent_environment(
    connection: Connection,
    environ: Mapping[str, str],
    *,
    switches: Mapping[str, str],
    keys: frozenset[str] = frozenset(),
) -> dict[str, str]:
    """Return the whole environment of the CLI: everybody's, the manifest's names, our switches.

    `keys` are names of variables that hold an API's key; no CLI gets one. Raises AgentError for a
    named variable that is not set.
    """
    for name in connection.env:
        if name not in environ:
            raise AgentError(f"{name}: found nothing, required it to be set (connections env)")
    forbidden = keys | {"ANTHROPIC_API_KEY"}
    return {**inherited(environ, connection.env, forbidden), **switches}


def probe(connection: Connection, program: Path, env: Mapping[str, str]) -> Agent:
    """Run `--version` once and hash the program. AgentError unless it is exactly the pinned build."""
    done = _said(program, ("--version",), env)
    found = done.stdout.split()
    version = found[0] if found else ""
    if done.timed_out or done.returncode != 0 or version != connection.version:
        told = f"no end within {_PROBE_S:g} s" if done.timed_out else ending(done.returncode)
        said = shown(done.stdout.strip(), 80)
        raise AgentError(
            f"{program}: found {said} from --version ({told}), {_required(connection)}"
        )
    return Agent(program, version, sha256_of(program))


def sha256_of(program: Path) -> str:
    """Return the SHA-256 of the program's file, links followed; AgentError where it is unreadable."""
    try:
        with program.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise AgentError(
            f"{program}: found {error.strerror}, required a readable program"
        ) from None


def _said(program: Path, arguments: Sequence[str], env: Mapping[str, str]) -> Finished:
    try:
        with tempfile.TemporaryDirectory(prefix="studyminimal-probe-") as folder:
            return run(
                [str(program), *arguments],
                cwd=Path(folder),
                env=env,
                timeout_s=_PROBE_S,
                max_bytes=_PROBE_BYTES,
            )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "an unusable name"
        raise AgentError(f"{program}: found {why}, required a program that starts") from None


def require_login(connection: Connection, agent: Agent, env: Mapping[str, str]) -> str:
    """Return what is known of the login, one public word; AgentError where there is none.

    `auth status` answers without a request to anybody (measured with 2.1.296 on 2026-12-01). A
    stand-in script is not asked: it might take any arguments for an order that costs money.
    """
    if not _is_genuine(agent.program, _PACKAGES[connection.transport]):
        return "not asked"
    done = _said(agent.program, ("auth", "status"), env)
    try:
        status = json.loads(done.stdout)
    except (ValueError, RecursionError):
        status = None
    logged_in = status.get("loggedIn") if isinstance(status, dict) else None
    if logged_in is True:
        return "logged in"
    if logged_in is False:
        raise AgentError(
            f"{connection.transport}: found it not logged in, required its own login: run"
            f" {agent.program} and /login once, or name a token's variable in connections env"
        )
    raise AgentError(
        f"{agent.program}: found no readable answer to auth status"
        f" ({'no end' if done.timed_out else ending(done.returncode)}), required to know its login"
    )


def _is_genuine(program: Path, package: str) -> bool:
    file = program.resolve()
    if package in file.as_posix():
        return True
    try:
        with file.open("rb") as stream:
            return stream.read(2) != b"#!"
    except OSError:
        return False
