"""The argument array of Claude Code as data: the same in both arms but for servers and their tools.

The order is the protocol's; the prompt comes last, after flags without a value, so that no option
that takes several values can swallow it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.arms import Arm
from pytest_studyminimal.protocol.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal

    from pytest_studyminimal.protocol.study import Study

BUILTIN = {"read": "Read", "search": "Grep", "list": "Glob"}
"""The CLI's own tool for each kind of repository tool, in the order in which they are passed."""

NEVER = (
    *("Bash", "Edit", "MultiEdit", "Write", "NotebookEdit"),
    *("WebFetch", "WebSearch", "Task", "Agent"),
)
"""Built-in tools denied in every arm (protocol: --disallowedTools)."""


def tool_name(server: str, exact: str) -> str:
    """Return the CLI's name of a server's tool: `doc.search` is `mcp__doc-bridge__doc_search`."""
    return f"mcp__{server}__{re.sub(r'[^A-Za-z0-9_-]', '_', exact)}"


def arm_of(tools: Sequence[str], allowed: Mapping[str, Sequence[str]]) -> Arm:
    """Return the arm of these kinds of tools and servers' exact names.

    Raises ServerError where two tools would get one name.
    """
    builtin = tuple(name for kind, name in BUILTIN.items() if kind in tools)
    by_name: dict[str, str] = {}
    for server, names in allowed.items():
        for exact in names:
            name = tool_name(server, exact)
            if name in by_name:
                raise ServerError("tools", f"found two tools named {name}, required distinct names")
            by_name[name] = server
    return Arm(
        offered=(*builtin, *by_name), server_tools=by_name, servers=tuple(allowed), builtin=builtin
    )


def refuse_ambiguous(study: Study, denied: Sequence[tuple[str, str]]) -> None:
    """Raise ServerError where a tool that is denied has the name of one that is allowed."""
    allowed = {
        tool_name(server, exact): exact
        for server, spec in study.servers.items()
        for exact in spec.allow
    }
    for server, exact in denied:
        name = tool_name(server, exact)
        if name in allowed:
            raise ServerError(
                "tools",
                f"servers.{server}: found {allowed[name]!r} (allowed) and {exact!r} (not allowed) both"
                f" named {name}, required distinct names",
            )


def claude_arm(study: Study, scenario: str) -> Arm:
    """Return the arm of a scenario by the manifest alone; no server is asked."""
    chosen = study.scenarios[scenario]
    return arm_of(chosen.tools, {name: study.servers[name].allow for name in chosen.servers})


@dataclass(frozen=True)
class Order:
    """What one process is asked to do; `commands` are the servers' argument arrays by name."""

    model: str
    question: str
    system: str | None
    limit_usd: Decimal
    arm: Arm
    denied: Sequence[tuple[str, str]]
    commands: Mapping[str, Sequence[str]]


def arguments(order: Order) -> list[str]:
    """Return the arguments after the program's name."""
    denied = sorted({tool_name(server, exact) for server, exact in order.denied})
    servers = {
        name: {"command": command[0], "args": list(command[1:])}
        for name, command in order.commands.items()
    }
    system = [] if order.system is None else [f"--append-system-prompt={order.system}"]
    # What starts with a hyphen would be read as an option (measured on 2026-12-01).
    separator = ["--"] if order.question.startswith("-") else []
    return [
        *("-p", "--model", order.model),
        *system,
        *("--output-format", "stream-json", "--verbose"),
        "--no-session-persistence",
        *("--max-budget-usd", money.text(money.rounded_down(order.limit_usd, 6))),
        "--restricted",
        "--disable-slash-commands",
        *("--permission-mode", "dontAsk", "--permission-prompts", "none"),
        *("--tools", ",".join(order.arm.builtin)),
        *("--allowedTools", ",".join(order.arm.offered)),
        *("--disallowedTools", ",".join((*NEVER, *denied))),
        *("--mcp-config", json.dumps({"mcpServers": servers}, separators=(",", ":"))),
        "--strict-mcp-config",
        *separator,
        order.question,
    ]
