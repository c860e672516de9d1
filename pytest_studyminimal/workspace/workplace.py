"""What an agent CLI gets for one attempt: a folder to work in and servers that it starts itself."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pytest_studyminimal.workspace.places import environment
from pytest_studyminimal.workspace.readiness import check_identity, refusals

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from pytest_studyminimal.protocol.study import Scenario, Server, Study
    from pytest_studyminimal.workspace.places import Places
    from pytest_studyminimal.workspace.servers import ServerFacts

_LAUNCHER = str(Path(__file__).with_name("launch.py"))


@dataclass
class Workplace:
    """The surroundings of one attempt; a context manager that makes and removes its private files.

    `tools` are kinds of repository tools, `allowed` the exact names by server, `denied` all pairs
    (server, exact name) that no arm may use. `commands` are the argument arrays of the servers, known
    once entered. Entering raises ServerError where a server is not what preflight saw.
    """

    cwd: Path
    tools: tuple[str, ...]
    allowed: Mapping[str, tuple[str, ...]]
    denied: tuple[tuple[str, str], ...]
    starts: Mapping[str, tuple[Server, Places, ServerFacts]] = field(default_factory=dict)
    agent_env: tuple[str, ...] = ()
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _box: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        self._box = tempfile.TemporaryDirectory(prefix="studyminimal-servers-")
        try:
            for name, (spec, places, facts) in self.starts.items():
                with refusals(name):
                    check_identity(spec, places, facts.identity)
                    self.commands[name] = self._command(name, spec, places)
        except BaseException:
            self._box.cleanup()
            raise
        return self

    def _command(self, name: str, spec: Server, places: Places) -> tuple[str, ...]:
        argv = tuple(places.expand(part) for part in spec.argv)
        cwd = Path(places.study, places.expand(spec.cwd))
        # A CLI starts its servers in its own folder and environment, and expands ${VAR} in arguments.
        plain = not any("${" in part for part in argv)
        if plain and cwd == self.cwd and not (spec.env or spec.pass_env or self.agent_env):
            return argv
        assert self._box is not None
        file = Path(self._box.name) / f"{name}.json"
        env = environment(spec, places, forbidden=frozenset({"ANTHROPIC_API_KEY"}))
        start = json.dumps({"argv": argv, "cwd": str(cwd), "env": env})
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(start)
        return (sys.executable, "-I", "-S", _LAUNCHER, str(file))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._box is not None:
            self._box.cleanup()


def workplace(
    study: Study,
    scenario: Scenario,
    facts: Mapping[str, ServerFacts],
    places: Places,
    *,
    denied: tuple[tuple[str, str], ...],
    agent_env: tuple[str, ...],
) -> Workplace:
    """Return the workplace of an attempt, its private files not yet made; `places` have an export."""
    assert places.export is not None
    return Workplace(
        cwd=places.export,
        tools=scenario.tools,
        allowed={server: study.servers[server].allow for server in scenario.servers},
        denied=denied,
        starts={
            server: (study.servers[server], places, facts[server]) for server in scenario.servers
        },
        agent_env=agent_env,
    )


def empty_workplace(cwd: Path) -> Workplace:
    """Return the workplace of an agent without tools and servers."""
    return Workplace(cwd=cwd, tools=(), allowed={}, denied=())


def denied_tools(
    study: Study, facts: Mapping[str, Mapping[str, ServerFacts]]
) -> tuple[tuple[str, str], ...]:
    """Return every listed tool that is not allowed, over all checkouts, sorted: (server, exact name)."""
    return tuple(
        sorted(
            {
                (server, tool.name)
                for by_server in facts.values()
                for server, seen in by_server.items()
                for tool in seen.tools
                if tool.name not in study.servers[server].allow
            }
        )
    )
