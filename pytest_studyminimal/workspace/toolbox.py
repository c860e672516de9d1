"""The tools of one attempt: repository tools and servers behind one set of wire names."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from pytest_studyminimal.workspace.corpus import NOTHING
from pytest_studyminimal.workspace.servers import RunningServer, ServerFacts, definitions
from pytest_studyminimal.workspace.toolnames import wire_map
from pytest_studyminimal.workspace.tools import RepositoryTools

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from pytest_studyminimal.protocol.records import ToolDefinition, ToolResult
    from pytest_studyminimal.protocol.study import Limits, Scenario, Study
    from pytest_studyminimal.workspace.corpus import Corpus
    from pytest_studyminimal.workspace.places import Places


@dataclass(frozen=True)
class Offer:
    """What a scenario offers to a model over one corpus, decided before any attempt starts.

    `routes` maps each server tool's wire name to its server and its exact MCP name.
    """

    definitions: tuple[ToolDefinition, ...]
    routes: Mapping[str, tuple[str, str]]

    @property
    def names(self) -> tuple[str, ...]:
        """The wire names in the order in which they are offered."""
        return tuple(tool.name for tool in self.definitions)


def offer(
    study: Study, scenario: Scenario, repository: RepositoryTools, facts: Mapping[str, ServerFacts]
) -> Offer:
    """Return the tools of a scenario; `facts` by server id.

    Raises ServerError where two tools would get the same wire name.
    """
    offered = list(repository.definitions)
    exact_names: list[tuple[str, str]] = []
    for server in scenario.servers:
        for definition, exact in definitions(server, study.servers[server], facts[server]):
            offered.append(definition)
            exact_names.append((server, exact))
    routes = wire_map(exact_names, reserved=[tool.name for tool in repository.definitions])
    return Offer(definitions=tuple(offered), routes=routes)


@dataclass
class AttemptTools:
    """The live tools of one attempt; a context manager that starts and stops its own servers.

    Entering raises ServerError where a server does not come up as it did in preflight.
    """

    offer: Offer
    repository: RepositoryTools
    starts: Mapping[str, Any]
    _servers: dict[str, RunningServer] = field(default_factory=dict)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools offered to the model, in a fixed order."""
        return self.offer.definitions

    def server_of(self, name: str) -> str | None:
        """The server behind a wire name, None for repository and unknown tools."""
        route = self.offer.routes.get(name)
        return route[0] if route else None

    @property
    def noise_lines(self) -> dict[str, int]:
        """How many lines that are no messages each server wrote, where it wrote any."""
        return {name: one.noise_count for name, one in self._servers.items() if one.noise_count}

    def call(self, name: str, arguments: dict[str, Any], *, timeout_s: float) -> ToolResult:
        """Run one offered tool; every failure of a tool is an error result."""
        route = self.offer.routes.get(name)
        if route is None:
            return self.repository.call(name, arguments)
        server, exact = route
        return self._servers[server].call(exact, arguments, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for server, start in self.starts.items():
                self._servers[server] = stack.enter_context(start())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


def no_tools() -> AttemptTools:
    """Return the tools of an agent that has none."""
    return AttemptTools(Offer((), {}), RepositoryTools(NOTHING, ()), starts={})


def attempt_tools(
    study: Study,
    scenario: Scenario,
    corpus: Corpus,
    facts: Mapping[str, ServerFacts],
    places: Places,
    limits: Limits,
) -> AttemptTools:
    """Return the tools of one attempt, its servers not yet started."""
    repository = RepositoryTools(corpus, scenario.tools)

    def starter(server: str) -> Any:
        return lambda: RunningServer(server, study.servers[server], places, facts[server], limits)

    return AttemptTools(
        offer=offer(study, scenario, repository, facts),
        repository=repository,
        starts={server: starter(server) for server in scenario.servers},
    )
