"""Attempts in their frozen order: tasks as written, arms rotated by task and repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pytest_studyminimal.protocol.records import Attempt

if TYPE_CHECKING:
    from pytest_studyminimal.protocol.study import Study

Phase = Literal["pilot", "full", "adjudicate"]


def plan(study: Study, phase: Phase, connection: str | None = None) -> tuple[Attempt, ...]:
    """Return every attempt of `phase`, pilot or full, in the order in which it must run.

    Scenarios rotate by (task index + repetition − 1) mod n, so that each arm goes first equally
    often; the index is the task's place in the manifest, in a pilot as well.
    """
    scenarios = list(study.scenarios)
    attempts: list[Attempt] = []
    for task_index, repetition in _rounds(study, phase):
        shift = (task_index + repetition - 1) % len(scenarios)
        attempts += [
            Attempt(
                place=len(attempts) + offset,
                task=study.tasks[task_index].id,
                scenario=scenario,
                repetition=repetition,
                connection=connection or study.default_connection,
            )
            for offset, scenario in enumerate(scenarios[shift:] + scenarios[:shift])
        ]
    return tuple(attempts)


def _rounds(study: Study, phase: Phase) -> list[tuple[int, int]]:
    chosen = range(len(study.tasks))
    repetitions = study.schedule.repetitions
    if phase == "pilot":
        repetitions = study.pilot.repetitions
        tasks = study.pilot.tasks
        if isinstance(tasks, int):
            chosen = range(tasks)
        else:
            return [
                (index, repetition)
                for index in chosen
                if study.tasks[index].id in tasks
                for repetition in range(1, repetitions + 1)
            ]
    return [(index, repetition) for index in chosen for repetition in range(1, repetitions + 1)]
