"""The rule book: transcript → status and reason, one table for every transport.

The rules are read from the top; the first that finds something decides the status, and every lower
finding is recorded as a problem all the same. A transport translates, it never judges.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money, prices
from pytest_studyminimal.protocol.records import Judgement, Status, ToolCall, Transcript
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal


@dataclass(frozen=True)
class Facts:
    """What was planned and what the house itself measured, beside the transcript.

    `overshoot_usd` is what calls cost beyond their own reservations, in dollars. For an agent CLI:
    its pinned `version`, the `servers` of the arm, the `builtin_tools` among those offered, and the
    list price of its usage in dollars, None where the usage is not known. `answer_problem` is what is
    wrong with an answer that must have a form, such as a verdict. `accepted_unknown` is what the
    manifest accepts that a transport does not state. Without a price table (`priced`) no cost is checked.
    """

    model: str
    alias: bool
    deadline_s: float
    offered_tools: tuple[str, ...]
    export_changes: tuple[str, ...] = ()
    overshoot_usd: Decimal = money.ZERO
    version: str | None = None
    servers: tuple[str, ...] = ()
    builtin_tools: tuple[str, ...] = ()
    computed_usd: Decimal | None = None
    answer_problem: str | None = None
    accepted_unknown: frozenset[str] = frozenset()
    priced: bool = True


def judge(transcript: Transcript, facts: Facts) -> Judgement:
    """Return the one status of an attempt, the public reason, and everything that was found."""
    findings = [
        (status, one_line(finding), rule)
        for status, rule in _RULES
        if (finding := rule(transcript, facts)) is not None
    ]
    problems = tuple(f"{status}: {finding}" for status, finding, _ in findings)
    if not findings:
        return Judgement(status="completed", reason=_unusable(transcript))
    status, reason, first = findings[0]
    # An answer without its form spoils no other: packets are judged one by one and are never paired.
    return Judgement(status=status, reason=reason, problems=problems, stops=first is not _form)


def _unusable(transcript: Transcript) -> str | None:
    # A valid observation whose outcome is decided without a judge: incomplete, 0.
    if transcript.answer_complete:
        return None
    said = transcript.problem or f"no usable answer (stop reason {transcript.stop_reason})"
    return one_line(said)


def _deadline(transcript: Transcript, facts: Facts) -> str | None:
    if transcript.ending != "deadline":
        return None
    return f"the deadline of {facts.deadline_s:g} s passed"


def _refused(transcript: Transcript, _: Facts) -> str | None:
    return _said(transcript) if transcript.ending == "budget" else None


def _interrupted(transcript: Transcript, _: Facts) -> str | None:
    return "the session was interrupted" if transcript.ending == "interrupted" else None


def _cut(transcript: Transcript, _: Facts) -> str | None:
    agent = transcript.agent
    return "its output passed the cap (limits.stdout_bytes)" if agent and agent.cut else None


def _ended_without_result(transcript: Transcript, _: Facts) -> str | None:
    agent = transcript.agent
    if agent is None or agent.results or not agent.exit_status:
        return None
    return f"ended by {exit_words(agent.exit_status)} without a result"


def exit_words(status: int) -> str:
    """Return how a process ended: `signal SIGKILL` for a negative status, else `exit status 1`.

    A shell's and node's 128 + n for a signal is named too.
    """
    named = -status if status < 0 else status - 128
    try:
        name = signal.Signals(named).name
    except ValueError:
        return f"exit status {status}" if status >= 0 else f"signal {-status}"
    return f"signal {name}" if status < 0 else f"exit status {status} ({name})"


def _stream(transcript: Transcript, _: Facts) -> str | None:
    return "; ".join(transcript.agent.stream_problems) or None if transcript.agent else None


def _version(transcript: Transcript, facts: Facts) -> str | None:
    agent = transcript.agent
    if agent is None or agent.model is None or agent.version == facts.version:
        return None
    return f"the CLI said {agent.version or 'no version'}, required version {facts.version}"


def _started_model(transcript: Transcript, facts: Facts) -> str | None:
    started = transcript.agent.model if transcript.agent else None
    if started is None or _is_study_model(started, facts):
        return None
    return f"the CLI started with model {one_line(started, 80)}, required {facts.model}"


def _servers_as_planned(transcript: Transcript, facts: Facts) -> str | None:
    agent = transcript.agent
    if agent is None or agent.model is None or "servers" in agent.unstated:
        return None
    seen = Counter(server.name for server in agent.servers)
    found = [
        f"server {server.name} is {server.status}"
        for server in agent.servers
        if server.status != "connected"
    ]
    found += [f"server {name} is not there" for name in facts.servers if name not in seen]
    found += [f"server {name} was not asked for" for name in sorted(set(seen) - set(facts.servers))]
    found += [f"server {name} is there {times} times" for name, times in seen.items() if times > 1]
    return "; ".join(found) or None


def _calls_outside(transcript: Transcript, facts: Facts) -> str | None:
    if transcript.agent is None:
        return None
    outside = {call.name for call in transcript.tool_calls} - set(facts.offered_tools)
    # A transport gives no name that only a model thought of.
    return f"called {', '.join(sorted(outside))}, which was not offered" if outside else None


def _denied(transcript: Transcript, facts: Facts) -> str | None:
    denials = transcript.agent.denials if transcript.agent else ()
    # A read outside the export is refused by the CLI, and the attempt goes on: that is the rule.
    refused = sorted(set(denials) - set(facts.builtin_tools))
    return f"the CLI denied {', '.join(refused)}" if refused else None


def _cost(transcript: Transcript, facts: Facts) -> str | None:
    agent = transcript.agent
    if agent is None or not agent.results:
        return None
    if agent.cost_problems:
        return "; ".join(agent.cost_problems)
    if not facts.priced or _OF_COST & set(agent.unstated):
        return None
    if agent.reported_cost_usd is None or facts.computed_usd is None:
        return "no cost that could be checked"
    if prices.agree(agent.reported_cost_usd, facts.computed_usd):
        return None
    return (
        f"reported {money.text(agent.reported_cost_usd)} USD and computed"
        f" {money.text(facts.computed_usd)} USD differ by more than a factor of {prices.AGREEMENT}"
    )


def _unstated_setup(transcript: Transcript, facts: Facts) -> str | None:
    return _unaccepted(transcript, facts, lambda name: name not in _OF_COST)


def _unstated_cost(transcript: Transcript, facts: Facts) -> str | None:
    return _unaccepted(transcript, facts, lambda name: name in _OF_COST)


_OF_COST = frozenset({"cost", "usage"})


def _unaccepted(
    transcript: Transcript, facts: Facts, concerns: Callable[[str], bool]
) -> str | None:
    agent = transcript.agent
    # Where nothing ended well, what was not told is no news.
    if agent is None or not agent.results or agent.is_error:
        return None
    missing = [one for one in agent.unstated if concerns(one) and one not in facts.accepted_unknown]
    if not missing:
        return None
    return f"did not state {', '.join(missing)} (connections accept_unknown)"


def _native_block(transcript: Transcript, _: Facts) -> str | None:
    block = transcript.agent.block if transcript.agent else None
    return block and f"{block}: the agent was kept from its work"


def _export_changed(_: Transcript, facts: Facts) -> str | None:
    if not facts.export_changes:
        return None
    return f"the export was changed: {', '.join(facts.export_changes)}"


def _tools_as_planned(transcript: Transcript, facts: Facts) -> str | None:
    offered, planned = Counter(transcript.offered_tools), Counter(facts.offered_tools)
    missing, extra = sorted(planned - offered), sorted(offered - planned)
    if not missing and not extra:
        return None
    return (
        f"offered tools differ from the plan: missing {missing or 'none'}, extra {extra or 'none'}"
    )


def _every_server_call_failed(transcript: Transcript, _: Facts) -> str | None:
    by_server: dict[str, list[ToolCall]] = {}
    for call in transcript.tool_calls:
        if call.server and not call.refused:
            by_server.setdefault(call.server, []).append(call)
    dead = [
        f"every call to server {server} failed ({len(calls)})"
        for server, calls in sorted(by_server.items())
        if all(call.is_error for call in calls)
    ]
    return "; ".join(dead) or None


def _model(transcript: Transcript, facts: Facts) -> str | None:
    for seen in transcript.models:
        if not _is_study_model(seen, facts):
            return f"served by model {one_line(seen, 80)}, required {facts.model}"
    # A CLI counts under the name that it asked for, and shows the name that answered.
    asked = {facts.model} if transcript.agent else set()
    if len(set(transcript.models) - asked) > 1:
        return f"served by several models: {one_line(', '.join(transcript.models))}"
    return None


def _is_study_model(seen: str, facts: Facts) -> bool:
    return seen == facts.model or is_dated(seen, facts.model, alias=facts.alias)


def is_dated(seen: str, model: str, *, alias: bool) -> bool:
    """Whether `seen` is the dated name behind `model`, which an alias may stand for."""
    return alias and re.fullmatch(re.escape(model) + r"-[0-9]{8}", seen, re.ASCII) is not None


def _budget_exceeded(transcript: Transcript, facts: Facts) -> str | None:
    if transcript.ending == "attempt-budget":
        return _said(transcript)
    if transcript.agent and transcript.agent.subtype == "error_max_budget_usd":
        return "the CLI stopped at its budget (error_max_budget_usd)"
    if facts.overshoot_usd > 0:
        return f"charged {money.text(facts.overshoot_usd)} USD more than was reserved"
    return None


def _provider_failed(transcript: Transcript, _: Facts) -> str | None:
    return _said(transcript) if transcript.ending in {"transport", "protocol"} else None


def _agent_failed(transcript: Transcript, _: Facts) -> str | None:
    agent = transcript.agent
    if agent is None or not agent.results:
        return None
    if agent.subtype == "success" and not agent.is_error:
        return None
    api = f", API status {agent.api_error_status}" if agent.api_error_status else ""
    error = " with is_error" if agent.is_error else ""
    return f"the CLI ended with {agent.subtype or 'no subtype'}{error}{api}"


def _exit(transcript: Transcript, _: Facts) -> str | None:
    agent = transcript.agent
    if agent is None:
        return None
    if agent.stayed:
        return "the CLI did not exit after its result"
    return f"ended by {exit_words(agent.exit_status)}" if agent.exit_status else None


def _form(_: Transcript, facts: Facts) -> str | None:
    return facts.answer_problem


def _said(transcript: Transcript) -> str:
    # No ending but "finished" may pass for completed because a transport gave no words for it.
    return transcript.problem or f"ended by {transcript.ending}"


_RULES: tuple[tuple[Status, Callable[[Transcript, Facts], str | None]], ...] = (
    ("timed-out", _deadline),
    ("blocked", _refused),
    ("failed", _interrupted),
    ("failed", _cut),
    ("failed", _ended_without_result),
    ("blocked", _native_block),
    ("invalid-setup", _stream),
    ("invalid-setup", _export_changed),
    ("invalid-setup", _version),
    ("invalid-setup", _started_model),
    ("invalid-setup", _servers_as_planned),
    ("invalid-setup", _tools_as_planned),
    ("invalid-setup", _calls_outside),
    ("invalid-setup", _denied),
    ("invalid-setup", _every_server_call_failed),
    ("invalid-setup", _unstated_setup),
    ("invalid-cost", _model),
    ("invalid-cost", _cost),
    ("invalid-cost", _unstated_cost),
    ("budget-exceeded", _budget_exceeded),
    ("failed", _provider_failed),
    ("failed", _agent_failed),
    ("failed", _exit),
    ("failed", _form),
)
