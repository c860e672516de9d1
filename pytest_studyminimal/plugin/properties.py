"""The figures of an attempt as plain properties, for JUnit and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Attempt, Observation, Usage

if TYPE_CHECKING:
    import pytest

    from pytest_studyminimal.run import Run

Plain = str | int | float


def attach(item: pytest.Item, properties: dict[str, Plain]) -> None:
    """Put properties on an item's reports; an unknown figure is simply not there."""
    # An item that reports twice (setup, then a plugin's rerun) keeps its first properties.
    if not any(name == "status" for name, _ in item.user_properties):
        item.user_properties.extend(properties.items())


def plain(value: Any) -> Any:
    """Return `value` as every report can hold it: plain types and valid UTF-8, all else as text."""
    if isinstance(value, dict):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        # pytest takes the reason of a skip from a tuple only.
        return (list if isinstance(value, list) else tuple)(plain(item) for item in value)
    if value is None or type(value) in {bool, int, float}:
        return value
    return str(value).encode("utf-8", "replace").decode()


def of_observation(run: Run, phase: str, observation: Observation) -> dict[str, Plain]:
    """Return what is public of a judged attempt, in plain str, int and float only."""
    usage = observation.usage or Usage()
    figures: dict[str, Plain | None] = {
        **of_blocked(run, phase, observation.attempt, observation.reason),
        "status": observation.status,
        "turns": observation.turns,
        "tool_calls": observation.tool_calls,
    }
    if observation.usage is not None and observation.usage_complete:
        figures |= {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        }
    figures |= {"charged_usd": money.text(observation.charged_usd), "wall_s": observation.wall_s}
    if observation.agent is not None:
        reported, computed = observation.reported_cost_usd, observation.computed_cost_usd
        figures |= {
            "reported_cost_usd": None if reported is None else money.text(reported),
            "computed_cost_usd": None if computed is None else money.text(computed),
            "agent_version": observation.agent.version,
        }
    return {name: value for name, value in figures.items() if value is not None}


def _names(attempt: Attempt) -> dict[str, Plain]:
    if not attempt.scenario:
        return {"packet": attempt.id}
    return {
        "task": attempt.task,
        "scenario": attempt.scenario,
        "repetition": attempt.repetition,
    }


def of_blocked(run: Run, phase: str, attempt: Attempt, reason: str | None) -> dict[str, Plain]:
    """Return what is known of an attempt that was not reached."""
    properties: dict[str, Plain | None] = {
        "study": run.terms.study.id,
        "phase": phase,
        **_names(attempt),
        "transport": run.terms.connection.transport,
        "model": run.terms.connection.model,
        "status": "blocked",
        "reason": reason,
        # A bool is an int to Python, but not to every reader of JUnit.
        "rehearsal": int(run.terms.rehearsal),
        "series": run.terms.series,
        "run": run.id,
    }
    return {name: value for name, value in properties.items() if value is not None}
