"""From a connection of the manifest to a transport that is ready to carry."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.errors import AgentError
from pytest_studyminimal.transports.agents import (
    Agent,
    agent_environment,
    find_program,
    probe,
    require_login,
    sha256_of,
)
from pytest_studyminimal.transports.claude_code import SWITCHES, ClaudeCode
from pytest_studyminimal.transports.messages import MessagesApi, read_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_studyminimal.protocol.study import Connection
    from pytest_studyminimal.transports import Transport

_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)\Z", re.IGNORECASE)
_SHORTEST_SECRET = 8
_REHEARSAL_TOKEN = "rehearsal"  # noqa: S105 - the local provider takes any


@dataclass(frozen=True)
class Site:
    """This machine as a transport needs it: environment, agent programs, and names of API keys.

    `agent` is what an earlier probe of the same run found; without it the CLI is probed here. `named`
    are variables that servers are given, `literals` values that the manifest itself gives them.
    """

    environ: Mapping[str, str] = field(repr=False)
    cwd: Path
    programs: Mapping[str, str] = field(default_factory=dict)
    keys: frozenset[str] = frozenset()
    agent: Mapping[str, str] | None = None
    named: frozenset[str] = frozenset()
    literals: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Opened:
    """A transport, and for an agent CLI what was probed and what is known of its login."""

    transport: Transport[Any]
    agent: Agent | None = None
    login: str | None = None


@contextlib.contextmanager
def open_transport(connection: Connection, site: Site) -> Iterator[Opened]:
    """Give a transport, and start the local provider for as long as a rehearsal needs it.

    Raises ProviderError where the key is missing or unusable, or the provider cannot be started,
    and AgentError where a CLI is missing, another build, or not logged in.
    """
    with contextlib.ExitStack() as stack:
        base_url = connection.base_url
        if connection.provider == "rehearsal":
            from pytest_studyminimal.rehearsal.server import RehearsalProvider  # noqa: PLC0415

            base_url = stack.enter_context(RehearsalProvider()).base_url
        if connection.is_agent:
            yield _agent(connection, site, base_url)
        else:
            yield Opened(_messages_api(connection, site, base_url))


def _messages_api(connection: Connection, site: Site, base_url: str | None) -> MessagesApi:
    assert base_url is not None
    rehearsal = connection.provider == "rehearsal"
    transport = MessagesApi(
        base_url=base_url,
        key=read_key(connection, {} if rehearsal else site.environ),
        version=connection.version,
        temperature=connection.temperature,
    )
    transport.prepare()
    return transport


def _agent(connection: Connection, site: Site, rehearsal_url: str | None) -> Opened:
    rehearsal = connection.provider == "rehearsal"
    switches = dict(SWITCHES)
    # A rehearsal needs no login, and gets none of the user's variables that would point elsewhere.
    named = connection.model_copy(update={"env": ()}) if rehearsal else connection
    if rehearsal:
        switches |= {
            "ANTHROPIC_BASE_URL": rehearsal_url or "",
            "ANTHROPIC_AUTH_TOKEN": _REHEARSAL_TOKEN,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
    env = agent_environment(named, site.environ, switches=switches, keys=site.keys)
    agent = _probed(connection, site, env)
    first = site.agent is None and not rehearsal
    login = require_login(connection, agent, env) if first else None
    transport = ClaudeCode(
        program=agent.program,
        env=env,
        alias=connection.alias,
        secrets=secrets_of(connection, site),
        private_home=rehearsal,
    )
    return Opened(transport, agent, login)


def _probed(connection: Connection, site: Site, env: Mapping[str, str]) -> Agent:
    program = find_program(connection, site.programs, site.environ, site.cwd)
    if site.agent is None:
        return probe(connection, program, env)
    # The version was probed once for the run; here only the file must still be the same.
    agent = Agent(program, site.agent["version"], sha256_of(program))
    if agent.sha256 != site.agent["sha256"]:
        raise AgentError(f"{program}: found another file, required the one that the run probed")
    return agent


def secrets_of(connection: Connection, site: Site) -> tuple[str, ...]:
    """Return the values to hide in what an agent wrote.

    All values of variables that the manifest names, and longer ones of variables that are named like
    secrets or stand in the manifest. What the rule book compares is never among them.
    """
    named = {*connection.env, *site.named}
    values = [
        value
        for name, value in site.environ.items()
        if name in named or (_SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET)
    ]
    values += [value for value in site.literals if len(value) >= _SHORTEST_SECRET]
    return tuple(value for value in values if value not in {connection.model, connection.version})
