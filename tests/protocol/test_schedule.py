"""The frozen order: tasks as written, arms rotated, the same in every process."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import changed, put, study_table

from pytest_studyminimal.protocol.schedule import plan
from pytest_studyminimal.protocol.study import Study


def study(table=None, **changes):
    table = table or study_table()
    for place, value in changes.items():
        put(table, place.replace("__", "."), value)
    return Study.model_validate_json(json.dumps(table))


def sized(tasks, arms, repetitions):
    task = study_table()["tasks"][0]
    return study(
        tasks=[{**task, "id": f"task-{number}"} for number in range(tasks)],
        scenarios={f"arm-{number}": {} for number in range(arms)},
        schedule__repetitions=repetitions,
    )


def test_the_full_order_of_a_small_study_is_written_here():
    assert [attempt.id for attempt in plan(study(), "full")] == [
        "one:plain:1",
        "one:docs-mcp:1",
        "one:docs-mcp:2",
        "one:plain:2",
        "two:docs-mcp:1",
        "two:plain:1",
        "two:plain:2",
        "two:docs-mcp:2",
    ]


def test_arms_rotate_by_task_index_plus_repetition_minus_one():
    attempts = plan(sized(tasks=3, arms=3, repetitions=4), "full")

    for start in range(0, len(attempts), 3):
        group = attempts[start : start + 3]
        task = int(group[0].task.removeprefix("task-"))
        first = (task + group[0].repetition - 1) % 3
        assert [one.scenario for one in group] == [f"arm-{(first + step) % 3}" for step in range(3)]
        assert len({one.pair for one in group}) == 1


def test_places_count_from_zero_in_running_order():
    attempts = plan(sized(tasks=2, arms=3, repetitions=2), "full")

    assert [attempt.place for attempt in attempts] == list(range(12))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(2, 4), st.integers(1, 6))
def test_every_combination_occurs_once_and_arms_go_first_equally_often(tasks, arms, repetitions):
    attempts = plan(sized(tasks, arms, repetitions), "full")
    firsts = Counter(attempt.scenario for attempt in attempts[::arms])

    assert len({attempt.id for attempt in attempts}) == len(attempts) == tasks * arms * repetitions
    if repetitions % arms == 0 or tasks % arms == 0:
        assert set(firsts.values()) == {tasks * repetitions // arms}
    for task in range(tasks):
        mine = Counter(one.scenario for one in attempts[::arms] if one.task == f"task-{task}")
        counts = [mine[f"arm-{arm}"] for arm in range(arms)]
        assert max(counts) - min(counts) <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6))
def test_two_arms_go_first_equally_often_wherever_the_rounds_are_even(tasks, repetitions):
    firsts = Counter(
        attempt.scenario for attempt in plan(sized(tasks, 2, repetitions), "full")[::2]
    )
    counts = [firsts["arm-0"], firsts["arm-1"]]

    assert sum(counts) == tasks * repetitions
    assert max(counts) - min(counts) == (tasks * repetitions) % 2


def test_a_pilot_is_the_first_task_in_every_arm_once():
    assert [attempt.id for attempt in plan(study(), "pilot")] == ["one:plain:1", "one:docs-mcp:1"]


def test_a_pilot_of_named_tasks_keeps_the_order_of_the_manifest_and_its_rotation():
    pilot = plan(study(pilot={"tasks": ["two"], "repetitions": 1}), "pilot")
    both = plan(study(pilot={"tasks": ["two", "one"], "repetitions": 2}), "pilot")

    assert [attempt.id for attempt in pilot] == ["two:docs-mcp:1", "two:plain:1"]
    assert [attempt.id for attempt in both] == [attempt.id for attempt in plan(study(), "full")]


def test_a_pilot_of_several_tasks_and_repetitions_is_as_large_as_it_says():
    pilot = plan(study(pilot={"tasks": 2, "repetitions": 3}), "pilot")

    assert len(pilot) == 2 * 2 * 3
    assert {attempt.repetition for attempt in pilot} == {1, 2, 3}


@pytest.mark.parametrize("phase", ["pilot", "full"])
def test_a_plan_is_the_same_every_time_and_names_its_connection(phase):
    first, again, other = plan(study(), phase), plan(study(), phase), plan(study(), phase, "cli")

    assert first == again
    assert {attempt.connection for attempt in first} == {"api"}
    assert {attempt.connection for attempt in other} == {"cli"}
    assert [attempt.id for attempt in other] == [attempt.id for attempt in first]


def test_an_id_does_not_change_when_tasks_are_added_behind_it():
    longer = changed("tasks[2]", {"id": "three", "corpus": "project", "question": "?"})

    assert plan(study(longer), "full")[:8] == plan(study(), "full")
