"""What a run has shown of its own setup: the agent, its servers and tools, and what costs agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money, prices
from pytest_studyminimal.protocol.text import dollars, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_studyminimal.protocol.records import AgentFacts, Observation
    from pytest_studyminimal.reports.view import RunView

_NO = "–"


def observations(run: RunView) -> list[Observation]:
    """Return what is recorded of the selected attempts that were started."""
    seen = [line.observation for line in run.selected if line.observation]
    return [one for one in seen if one.wall_s is not None]


def agent_lines(run: RunView) -> list[str]:
    """Return the agent's build, its figures for each attempt of a pilot, and the servers' check."""
    agent = run.row.body.get("agent")
    if agent is None:
        return []
    login = f", {agent['login']}" if agent["login"] else ""
    lines = [
        one_line(
            f"{run.row.body['transport']} {agent['version']}, pinned {agent['expected_version']},"
            f" sha256 {agent['sha256'][:12]}{login}"
        )
    ]
    if run.row.body["phase"] == "pilot":
        lines += list(_figures(run))
    return [*lines, *_servers(run)]


def _figures(run: RunView) -> Iterator[str]:
    for seen in observations(run):
        usage, agent = seen.usage, seen.agent
        if usage is None or agent is None:
            continue
        api = _NO if agent.duration_api_ms is None else f"{agent.duration_api_ms / 1000:.2f}"
        start = _NO if agent.startup_s is None else f"{agent.startup_s:.2f}"
        # Without a result the counts are of what was seen, and no totals.
        more = "" if seen.usage_complete else "+?"
        yield (
            f"{seen.attempt.id}: reported {_usd(seen.reported_cost_usd)}, computed"
            f" {_usd(seen.computed_cost_usd)}, in {usage.input_tokens:,}{more}, cache read"
            f" {usage.cache_read_tokens:,}{more}, cache write {usage.cache_write_tokens:,}{more}, out"
            f" {usage.output_tokens:,}{more}, start {start} s, API {api} s"
        )


def _usd(amount: object) -> str:
    return "unknown" if amount is None else dollars(money.text(amount))  # type: ignore[arg-type]


def _servers(run: RunView) -> Iterator[str]:
    for scenario in run.row.body["scenarios"]:
        mine = [one for one in observations(run) if one.attempt.scenario == scenario]
        agents = [one.agent for one in mine if one.agent is not None and one.agent.model]
        if not agents:
            continue
        offered = {name for agent in agents for name in agent.tools if name.startswith("mcp__")}
        used = {name for one in mine for name in one.tool_calls_by_name} & offered
        tools = f"; {len(used)} of {len(offered)} MCP tools used" if offered else ""
        yield f"MCP check, {scenario}: {_statuses(agents)}{tools}"


def _statuses(agents: list[AgentFacts]) -> str:
    names = sorted({server.name for agent in agents for server in agent.servers})
    if not names:
        return f"no server in {len(agents)} of {len(agents)} attempts"
    told = []
    for name in names:
        connected = sum(
            any(one.name == name and one.status == "connected" for one in agent.servers)
            for agent in agents
        )
        told.append(f"{one_line(name, 64)} connected in {connected} of {len(agents)} attempts")
    return ", ".join(told)


def proven(run: RunView) -> dict[str, str]:
    """Return which parts of a study a run has shown to work: yes, NO or not seen."""
    seen = observations(run)
    parts = {
        "versions": _all(seen, _version_is_right),
        "tool sets": _all(seen, lambda one: _clean(one, "offered tools", "called ")),
        "servers": _all(seen, lambda one: _clean(one, "server ", "every call to server")),
        "pins": _all(seen, lambda one: _clean(one, "the export was changed")),
        "reachability": _reachability(run),
        "costs agree": _all(seen, _costs_agree),
    }
    if run.row.body.get("agent") is None:
        # An API tells neither a build nor a cost.
        del parts["versions"], parts["costs agree"]
    return parts


def proven_line(run: RunView) -> str:
    """Return what a run has shown of its setup as a line."""
    return "proven: " + " · ".join(f"{name} {told}" for name, told in proven(run).items())


def _all(seen: list[Observation], holds: Callable[[Observation], bool | None]) -> str:
    found = [known for one in seen if (known := holds(one)) is not None]
    if not found:
        return "not seen"
    return "yes" if all(found) else "NO"


def _version_is_right(seen: Observation) -> bool | None:
    if seen.agent is None or seen.agent.model is None:
        return None
    return seen.agent.version == seen.expected_version


def _clean(seen: Observation, *beginnings: str) -> bool | None:
    if seen.status in {"blocked", "timed-out"} or (seen.agent and seen.agent.model is None):
        return None
    told = [problem.partition(": ")[2] for problem in seen.problems]
    return not any(one.startswith(beginnings) for one in told)


def _costs_agree(seen: Observation) -> bool | None:
    if seen.reported_cost_usd is None or seen.computed_cost_usd is None:
        return None
    return prices.agree(seen.reported_cost_usd, seen.computed_cost_usd)


def _reachability(run: RunView) -> str:
    known = [
        reach
        for by_server in run.row.body.get("servers", {}).values()
        for facts in by_server.values()
        for reaches in facts.get("reachable", {}).values()
        for reach in reaches
    ]
    return f"{known.count('yes')} of {len(known)} sources" if known else "not seen"
