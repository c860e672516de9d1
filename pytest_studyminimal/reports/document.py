"""One run as one plain document, from which every format of a report is made.

It holds public facts alone: no answer, no question, no path of a machine. What is missing is counted
beside every figure and never enters it.
"""

from __future__ import annotations

import statistics
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money
from pytest_studyminimal.reports.effects import LEVEL, effect, holm
from pytest_studyminimal.reports.gates import declared, gates_of
from pytest_studyminimal.reports.outcomes import (
    Outcome,
    adjudication,
    agreement,
    correctness,
    declaration,
    outcomes,
)
from pytest_studyminimal.reports.proofs import proven
from pytest_studyminimal.reports.setups import servers, setups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_studyminimal.protocol.records import Observation
    from pytest_studyminimal.reports.view import Line, RunView

FORMAT = 1
DECLARATIONS = {
    "intervals": "intervals and probabilities are exploratory: tasks are few and were chosen by hand",
    "preparation": "preparing an index or an engine is in no figure here; its cost is reported apart",
    "publication": "publication needs the maintainer's approval",
}
REHEARSAL = "rehearsal: the model was local and scripted, so nothing here is evidence"

Number = Decimal | int | float | None


def _usage(name: str) -> Callable[[Observation], Number]:
    def metric(seen: Observation) -> Number:
        return getattr(seen.usage, name) if seen.usage and seen.usage_complete else None

    return metric


METRICS: dict[str, Callable[[Observation], Number]] = {
    "input_tokens": _usage("input_tokens"),
    "cache_read_tokens": _usage("cache_read_tokens"),
    "cache_write_tokens": _usage("cache_write_tokens"),
    "prompt_tokens": _usage("prompt_tokens"),
    "output_tokens": _usage("output_tokens"),
    "turns": lambda seen: seen.turns,
    "tool_calls": lambda seen: seen.tool_calls,
    "wall_s": lambda seen: seen.wall_s,
    "charged_usd": lambda seen: seen.charged_usd,
    "reported_cost_usd": lambda seen: seen.reported_cost_usd,
    "computed_cost_usd": lambda seen: seen.computed_cost_usd,
}
COMPARED = ("prompt_tokens", "output_tokens", "turns", "tool_calls", "wall_s", "charged_usd")


def document(run: RunView) -> dict[str, Any]:
    """Return the report of a run as plain JSON: numbers, texts, lists; unknown is null."""
    body = run.row.body
    series = body["series"]
    arms = list(body["scenarios"])
    judged = outcomes(run)
    sides = _sides(run)
    effects = [_effects(run.row.run, sides, judged, arms[0], other) for other in arms[1:]]
    declared(effects, body.get("margins", {}))
    found = {
        "format": FORMAT,
        "study": body["study"],
        "title": body.get("title"),
        "phase": body["phase"],
        "run": run.row.run,
        "at": run.row.at,
        "rehearsal": body["rehearsal"],
        # Each by its name and none by default: a report without one of them is no report.
        "declarations": {
            "adjudication": declaration(run),
            **DECLARATIONS,
            "evidence": REHEARSAL if body["rehearsal"] else None,
        },
        "limitations": _limitations(run),
        "series": series,
        "provenance": {
            "transport": body["transport"],
            "version": body.get("transport_version"),
            "model": body["model"],
            "model_is_alias": body.get("model_is_alias"),
            "provider": body.get("provider"),
            "agent": _agent(body.get("agent")),
            "corpora": {
                name: {"commit": corpus["commit"], "digest": corpus["digest"]}
                for name, corpus in body.get("corpora", {}).items()
            },
            "study_folder": body.get("study_folder", {}),
            "servers": servers(run),
            "proven": proven(run),
        },
        "money": {
            "charged_usd": money.text(run.charged_usd),
            "account": run.row.account,
            "account_spent_usd": money.text(run.balance.spent_usd),
            # The balance of the row that opened the run: what other runs had used before.
            "account_committed_before_usd": money.text(run.row.balance.committed_usd),
            "account_reserved_usd": money.text(run.balance.reserved_usd),
            "cap_usd": money.text(run.cap_usd),
            "adjudication_usd": None if run.judged_usd is None else money.text(run.judged_usd),
            "cumulative_cap_exceeded": any(
                line.observation and line.observation.cumulative_cap_exceeded for line in run.lines
            ),
        },
        "attempts": [_attempt(line, judged[line.attempt.id]) for line in run.lines],
        "arms": {
            arm: _arm([line for line in run.lines if line.attempt.scenario == arm]) for arm in arms
        },
        "setups": setups(run),
        "tasks": _tasks(run, arms),
        "correctness": {
            "all": correctness(judged, run.lines),
            "arms": {
                arm: correctness(
                    judged, [line for line in run.lines if line.attempt.scenario == arm]
                )
                for arm in arms
            },
            "agreement": agreement(judged),
        },
        "pairs": _pairs(sides, judged, arms),
        "effects": effects,
        "adjudication": adjudication(run, judged),
        "order": _first_arms(run, arms),
        "stopped": run.stop and {"attempt": run.stop.attempt, "why": run.stop.body["why"]},
    }
    return found | {"gates": gates_of(found, body.get("gates"))}


def _first_arms(run: RunView, arms: Sequence[str]) -> dict[str, int]:
    """Return how often each arm went first of its task and repetition, as planned."""
    first: dict[str, str] = {}
    for line in run.lines:
        first.setdefault(line.attempt.pair, line.attempt.scenario)
    counted = list(first.values())
    return {arm: counted.count(arm) for arm in arms}


def _limitations(run: RunView) -> list[str]:
    body = run.row.body
    found = []
    if body.get("model_is_alias"):
        found.append(f"model {body['model']} is an alias: what answers under it may change")
    if body["not_selected"]:
        found.append(
            f"partial: {len(body['selected'])} of {len(body['planned'])} attempts were selected"
        )
    missing = sum(line.status != "completed" for line in run.lines)
    if missing:
        found.append(f"{missing} of {len(run.lines)} attempts are missing or not valid")
    if any(record.body.get("same_model") for record in run.verdicts):
        found.append("the adjudicator is the model that answered, in a fresh context")
    found.append("the effort of setting an arm up is in no figure here")
    if body["phase"] == "pilot":
        found.append("a pilot: its attempts count towards no full run")
    if run.row.body.get("study_folder", {}).get("dirty"):
        found.append("the study folder had changes beside its commit")
    return found


def _agent(agent: dict[str, Any] | None) -> dict[str, Any] | None:
    if agent is None:
        return None
    # Where the program lies is this machine's.
    return {name: value for name, value in agent.items() if name != "program"}


def _attempt(line: Line, judged: Outcome) -> dict[str, Any]:
    seen = line.observation
    facts: dict[str, Any] = {
        "attempt": line.attempt.id,
        "task": line.attempt.task,
        "scenario": line.attempt.scenario,
        "repetition": line.attempt.repetition,
        "place": line.attempt.place,
        "status": line.status,
        "started_at": line.started_at,
        "ended_at": line.ended_at,
        "reason": seen.reason if seen else None,
        "problems": list(seen.problems) if seen else [],
        "outcome": judged.outcome,
        "outcome_missing_because": judged.why if judged.score is None else None,
        "adjudicators": list(judged.adjudicators),
    }
    for name, metric in METRICS.items():
        facts[name] = _plain(metric(seen)) if seen else None
    if seen is None:
        return facts
    agent = seen.agent
    return facts | {
        "tool_calls_by_name": dict(seen.tool_calls_by_name),
        "tool_errors_by_name": dict(seen.tool_errors_by_name),
        "offered_tools": list(seen.offered_tools),
        "answer_complete": seen.answer_complete,
        "cost_basis": seen.cost_basis,
        "denials": list(agent.denials) if agent else [],
        "api_retries": agent.api_retries if agent else None,
        "startup_s": agent.startup_s if agent else None,
    }


def _plain(value: Number) -> Any:
    return money.text(value) if isinstance(value, Decimal) else value


def _arm(lines: Sequence[Line]) -> dict[str, Any]:
    statuses = [line.status for line in lines]
    return {
        "attempts": len(lines),
        "statuses": {status: statuses.count(status) for status in dict.fromkeys(statuses)},
        # What failed was charged as well; the figures below are of completed attempts alone.
        "charged_usd": money.text(
            money.total(line.observation.charged_usd for line in lines if line.observation)
        ),
        "metrics": {name: _distribution(lines, metric) for name, metric in METRICS.items()},
    }


def _distribution(lines: Sequence[Line], metric: Callable[[Observation], Number]) -> dict[str, Any]:
    known = [
        value
        for line in lines
        if line.observation and line.status == "completed"
        if (value := metric(line.observation)) is not None
    ]
    told: dict[str, Any] = {"n": len(known), "missing": len(lines) - len(known)}
    if not known:
        return told
    exact = [value if isinstance(value, Decimal) else Decimal(str(value)) for value in known]
    low, high = statistics.median_low(exact), statistics.median_high(exact)
    half = Decimal("0.5")
    return told | {
        "total": money.text(money.total(exact)),
        "mean": money.text(money.scaled(money.total(exact), 1, len(exact))),
        "median": money.text(money.multiply(money.add(low, high), half)),
        "least": money.text(min(exact)),
        "most": money.text(max(exact)),
    }


def _tasks(run: RunView, arms: Sequence[str]) -> dict[str, Any]:
    by_task: dict[str, dict[str, list[Line]]] = {}
    for line in run.lines:
        of_task = by_task.setdefault(line.attempt.task, {arm: [] for arm in arms})
        of_task[line.attempt.scenario].append(line)
    return {
        task: {arm: _arm(lines) for arm, lines in of_task.items()}
        for task, of_task in by_task.items()
    }


def _sides(run: RunView) -> dict[str, dict[str, Line]]:
    by_pair: dict[str, dict[str, Line]] = {}
    for line in run.lines:
        by_pair.setdefault(line.attempt.pair, {})[line.attempt.scenario] = line
    return by_pair


def _pairs(
    sides_by_pair: Mapping[str, dict[str, Line]], judged: Mapping[str, Outcome], arms: Sequence[str]
) -> list[dict[str, Any]]:
    found = []
    for pair, sides in sides_by_pair.items():
        for other in arms[1:]:
            first, second = sides.get(arms[0]), sides.get(other)
            missing = [
                f"{arm}: {line.status if line else 'not planned'}"
                for arm, line in ((arms[0], first), (other, second))
                if line is None or line.status != "completed"
            ]
            differences = {}
            if not missing and first and second:
                differences = {
                    name: money.text(value)
                    for name in ("score", *COMPARED)
                    if (value := _difference(first, second, name, judged)) is not None
                }
            found.append(
                {
                    "pair": pair,
                    "arms": [arms[0], other],
                    "missing": missing,
                    "differences": differences,
                }
            )
    return found


def _difference(
    first: Line, second: Line, name: str, judged: Mapping[str, Outcome]
) -> Decimal | None:
    if name == "score":
        here, there = (judged[line.attempt.id].score for line in (first, second))
    elif first.observation and second.observation:
        seen = (METRICS[name](first.observation), METRICS[name](second.observation))
        here, there = (None if value is None else Decimal(str(value)) for value in seen)
    else:
        return None
    return None if here is None or there is None else money.subtract(there, here)


def _effects(
    run: str,
    sides_by_pair: Mapping[str, dict[str, Line]],
    judged: Mapping[str, Outcome],
    first: str,
    second: str,
) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    planned = sum(first in sides for sides in sides_by_pair.values())
    for name in ("score", *COMPARED):
        by_task: dict[str, list[float]] = {}
        for sides in sides_by_pair.values():
            here, there = sides.get(first), sides.get(second)
            if here is None or there is None:
                continue
            values = by_task.setdefault(here.attempt.task, [])
            if here.status == there.status == "completed":
                value = _difference(here, there, name, judged)
                values += [] if value is None else [float(value)]
        seen = effect(by_task, f"{run}:{name}")
        metrics[name] = {
            "pairs": seen.pairs,
            "missing": planned - seen.pairs,
            "by_task": seen.by_task,
            "estimate": seen.estimate,
            "interval": list(seen.interval) if seen.interval else None,
            "p": seen.p,
            "least_p": seen.least_p,
            "detectable": seen.detectable,
            "standard_error": seen.standard_error,
        }
    corrected = holm({name: one["p"] for name, one in metrics.items() if one["p"] is not None})
    for name, p in corrected.items():
        metrics[name]["p_holm"] = p
    return {"arms": [first, second], "level": LEVEL, "exploratory": True, "metrics": metrics}
