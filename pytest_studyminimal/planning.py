"""A plan before the money: what a phase would run, reserve and cost at most. It starts no agent."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import platformdirs

from pytest_studyminimal.approvals import decide_cap, decide_upper
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.judging.key import load_key
from pytest_studyminimal.preflight import Roots, check_sources, read_corpora
from pytest_studyminimal.protocol import money, prices
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.manifest import StudyFolder, load
from pytest_studyminimal.protocol.schedule import Phase
from pytest_studyminimal.protocol.schedule import plan as schedule
from pytest_studyminimal.protocol.text import dollars, one_line
from pytest_studyminimal.reports.pilots import pilots
from pytest_studyminimal.reports.summary import columns, extrapolates, minutes
from pytest_studyminimal.transports import Assignment
from pytest_studyminimal.transports.agents import COMMANDS
from pytest_studyminimal.transports.claude_arguments import Order, arguments, claude_arm
from pytest_studyminimal.transports.requests import question_message, request_body
from pytest_studyminimal.workspace.corpus import NOTHING
from pytest_studyminimal.workspace.tools import RepositoryTools

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_studyminimal.protocol.records import Attempt, ToolDefinition
    from pytest_studyminimal.protocol.study import Connection, Tier

NOTHING_STARTED = "network calls 0, agent processes 0"


def describe_plan(
    study: Path,
    phase: Phase,
    *,
    connection: str | None,
    roots: list[str],
    verify: bool,
    ledger_path: Path | None,
    environ: Mapping[str, str],
    cwd: Path,
) -> dict[str, Any]:
    """Return the plan of a phase as plain values; amounts are decimal strings in dollars.

    With `verify` the corpora are read by local git processes, pins and sources checked. Raises
    StudyError with one line for whatever cannot be planned.
    """
    folder = load(study)
    if connection is not None and connection not in folder.study.connections:
        known = ", ".join(folder.study.connections)
        raise UsageRefusedError(
            f"--study-connection: found {connection!r}, required one of {known}"
        )
    name = connection or folder.study.default_connection
    attempts = schedule(folder.study, phase, name)
    cap = decide_cap(folder.study, phase, None, environ)
    upper = decide_upper(folder.study, {}, environ)
    known_roots = Roots.gather(folder, roots, environ, cwd)
    arms = {
        arm: _arm(folder, arm, folder.study.connections[name]) for arm in folder.study.scenarios
    }
    attempt_usd = folder.study.attempt_usd(folder.study.connections[name])
    ceiling = money.multiply(attempt_usd, len(attempts))
    return {
        "study": folder.study.id,
        "phase": phase,
        "protocol": folder.digest,
        "connection": name,
        "model": folder.study.connections[name].model,
        "provider": folder.study.connections[name].provider,
        "started": NOTHING_STARTED,
        "cap_usd": money.text(cap.usd),
        "attempt_usd": money.text(attempt_usd),
        "worst_case_usd": money.text(min(cap.usd, ceiling)),
        "attempts": [
            {
                "id": attempt.id,
                "first_reservation_usd": _reservation(folder, attempt, name, upper),
            }
            for attempt in attempts
        ],
        "arms": arms,
        "verified": _verify(folder, attempts, known_roots) if verify else None,
        "projected": _projection(folder, name, len(attempts), ledger_path),
    }


def _assignment(folder: StudyFolder, question: str, model: str) -> Assignment:
    limits = folder.study.limits
    return Assignment(
        model=model,
        question=question,
        system=folder.study.prompt.system,
        turns=limits.turns,
        output_tokens=limits.output_tokens,
        tools_per_turn=limits.tools_per_turn,
        deadline_s=limits.deadline_s,
        tool_s=limits.tool_s,
        stdout_bytes=limits.stdout_bytes,
        attempt_usd=folder.study.budget.attempt_usd,
    )


def _tools(folder: StudyFolder, scenario: str) -> tuple[ToolDefinition, ...]:
    return RepositoryTools(NOTHING, folder.study.scenarios[scenario].tools).definitions


def _first_request(
    folder: StudyFolder, scenario: str, question: str, connection: Connection
) -> bytes:
    return request_body(
        _assignment(folder, question, connection.model),
        _tools(folder, scenario),
        [question_message(question)],
        temperature=connection.temperature,
    )


def _reservation(folder: StudyFolder, attempt: Attempt, connection: str, upper: Tier) -> str:
    if folder.study.connections[connection].is_agent:
        return money.text(folder.study.attempt_usd(folder.study.connections[connection]))
    question = folder.study.task(attempt.task).question
    body = _first_request(folder, attempt.scenario, question, folder.study.connections[connection])
    needed = prices.reservation(
        upper,
        request_bytes=len(body),
        output_tokens=folder.study.limits.output_tokens,
    )
    return money.text(needed)


def _servers(folder: StudyFolder, scenario: str) -> dict[str, Any]:
    return {
        server: {
            "argv": list(folder.study.servers[server].argv),
            "tools": list(folder.study.servers[server].allow),
        }
        for server in folder.study.scenarios[scenario].servers
    }


def _agent_arm(folder: StudyFolder, scenario: str, connection: Connection) -> dict[str, Any]:
    """Return the command of an arm; what is listed live, and denied, is not known before a run."""
    servers = folder.study.scenarios[scenario].servers
    order = Order(
        model=connection.model,
        question="(the question of the task)",
        system=folder.study.prompt.system and "(the system prompt)",
        limit_usd=folder.study.attempt_usd(connection),
        arm=claude_arm(folder.study, scenario),
        denied=(),
        commands={name: folder.study.servers[name].argv for name in servers},
    )
    return {
        "command": [COMMANDS[connection.transport], *arguments(order)],
        "version": connection.version,
        "env": list(connection.env),
        "servers": _servers(folder, scenario),
    }


def _arm(folder: StudyFolder, scenario: str, connection: Connection) -> dict[str, Any]:
    if connection.is_agent:
        return _agent_arm(folder, scenario, connection)
    system = folder.study.prompt.system
    body = _first_request(folder, scenario, "(the question of the task)", connection)
    return {
        "request": f"POST {connection.base_url or 'http://127.0.0.1 (rehearsal)'}/v1/messages",
        "key": connection.key,
        "body": {**json.loads(body), **({"system": "(the system prompt)"} if system else {})},
        "servers": _servers(folder, scenario),
    }


def _verify(folder: StudyFolder, attempts: tuple[Attempt, ...], roots: Roots) -> list[str]:
    corpora = read_corpora(folder, attempts, roots)
    sources = {task: expected.sources for task, expected in load_key(folder).tasks.items()}
    check_sources(folder, corpora, sources)
    lines = [
        f"corpus {name} at {corpus.commit[:12]}: {len(corpus.files)} files,"
        f" {sum(corpus.excluded.values())} left out; every source of the answer key is readable"
        for name, corpus in corpora.items()
    ]
    return lines + [line for corpus in corpora.values() for line in corpus.warnings]


def _projection(
    folder: StudyFolder, connection: str, attempts: int, ledger_path: Path | None
) -> dict[str, Any] | None:
    default = platformdirs.user_state_path("studyminimal") / folder.study.id / "ledger.sqlite3"
    path = ledger_path or default
    if not path.is_file():
        return None
    with Ledger.open(path, folder.study.id) as ledger:
        for pilot in pilots(ledger):
            same = (
                pilot.row.body["series"]["protocol"] == folder.digest
                and pilot.row.body["connection"] == connection
            )
            if not same or not extrapolates(pilot):
                continue
            seconds = sum(line.observation.wall_s or 0 for line in pilot.lines if line.observation)
            return {
                "pilot": pilot.row.run,
                "rehearsal": pilot.row.body["rehearsal"],
                "usd": money.text(money.scaled(pilot.charged_usd, attempts, len(pilot.lines))),
                "seconds": round(seconds * attempts / len(pilot.lines), 1),
            }
    return None


def plan_lines(described: dict[str, Any]) -> list[str]:
    """Return the plan as lines for people."""
    attempts = described["attempts"]
    rows = [("#", "attempt", "first reservation")]
    rows += [
        (str(number), one["id"], dollars(one["first_reservation_usd"]))
        for number, one in enumerate(attempts, start=1)
    ]
    worst, cap = dollars(described["worst_case_usd"]), dollars(described["cap_usd"])
    each = dollars(described["attempt_usd"])
    lines = [
        (
            f"study {described['study']} · {described['phase']} · {len(attempts)} attempts ·"
            f" {described['provider']} model {described['model']} · {described['started']}"
        ),
        "",
        *columns(rows),
        "",
        (f"worst case {worst}: attempts × {each}, never above the cap of {cap}"),
        *_how_reserved(described["arms"]),
        *_projected_line(described["projected"]),
        "",
    ]
    for name, arm in described["arms"].items():
        lines += _arm_lines(name, arm)
    for line in described["verified"] or ():
        lines.append(one_line(line))
    return lines


def _how_reserved(arms: dict[str, Any]) -> list[str]:
    if any("command" in arm for arm in arms.values()):
        return ["the whole attempt is reserved before its process starts, and settled by its cost"]
    return [
        "each call reserves (2 × request bytes + 8,192) input and all output tokens at upper rates;",
        "tool schemas of servers are not counted above, since no server is started for a plan",
    ]


def _projected_line(projected: dict[str, Any] | None) -> list[str]:
    if projected is None:
        return ["projected cost: unknown before a completed pilot of this protocol"]
    rehearsal = ", a rehearsal" if projected["rehearsal"] else ""
    return [
        (
            f"projected from pilot {projected['pilot']}{rehearsal}: {dollars(projected['usd'])} and about"
            f" {minutes(projected['seconds'])}; no upper bound"
        )
    ]


def _arm_lines(name: str, arm: dict[str, Any]) -> list[str]:
    if "command" in arm:
        lines = [f"arm {name}: {one_line(shlex.join(arm['command']), 2000)}"]
    else:
        lines = [_request_line(name, arm)]
    for server, start in arm["servers"].items():
        argv = json.dumps(start["argv"], ensure_ascii=False)
        lines.append(f"  server {server}: {one_line(argv)} offering {', '.join(start['tools'])}")
    return lines


def _request_line(name: str, arm: dict[str, Any]) -> str:
    body = arm["body"]
    tools = ", ".join(tool["name"] for tool in body.get("tools", ())) or "none"
    key = f", key from {arm['key']}" if arm["key"] else ""
    settings = ", ".join(
        f"{key} {body[key]}" for key in ("max_tokens", "temperature") if key in body
    )
    return f"arm {name}: {arm['request']}{key}; {settings}; repository tools {tools}"
