"""What each arm was to have, was offered, and used; what its servers said they are."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_studyminimal.reports.view import Line, RunView


def setups(run: RunView) -> dict[str, dict[str, Any]]:
    """Return by arm: planned tools and servers, offered tools, calls and errors by tool, denials, retries.

    What was planned is None in a run that did not record it; retries are None where no attempt's
    transport states them.
    """
    planned = run.row.body.get("arms", {})
    return {
        arm: {
            "planned_tools": planned.get(arm, {}).get("tools"),
            "planned_servers": planned.get(arm, {}).get("servers"),
            **_seen([line for line in run.lines if line.attempt.scenario == arm]),
        }
        for arm in run.row.body["scenarios"]
    }


def _seen(lines: Sequence[Line]) -> dict[str, Any]:
    seen = [line.observation for line in lines if line.observation]
    calls: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    for one in seen:
        calls.update(one.tool_calls_by_name)
        errors.update(one.tool_errors_by_name)
    sets = {tuple(sorted(one.offered_tools)) for one in seen if one.offered_tools}
    agents = [one.agent for one in seen if one.agent]
    retries = [agent.api_retries for agent in agents if agent.api_retries is not None]
    return {
        "offered_tools": sorted({name for names in sets for name in names}),
        # More than one: not every attempt of the arm had the same tools.
        "offered_sets": len(sets),
        "tool_calls_by_name": dict(sorted(calls.items())),
        "tool_errors_by_name": dict(sorted(errors.items())),
        "denials": sum(len(agent.denials) for agent in agents),
        "api_retries": sum(retries) if retries else None,
    }


def servers(run: RunView) -> dict[str, dict[str, Any]]:
    """Return by server, then corpus, what preflight learnt of it.

    That is its name and versions, its tools, and by task whether each source can be reached.
    """
    found: dict[str, dict[str, Any]] = {}
    for corpus, by_server in run.row.body.get("servers", {}).items():
        for server, facts in by_server.items():
            found.setdefault(server, {})[corpus] = {
                "name": facts.get("name"),
                "version": facts.get("version"),
                "version_line": facts.get("version_line"),
                "protocol_version": facts.get("protocol_version"),
                "tools": [tool["name"] for tool in json.loads(facts.get("tools_json", "[]"))],
                "reachable": facts.get("reachable", {}),
            }
    return found
