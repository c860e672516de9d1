"""Effects over tasks, held against brute force and against what is known in closed form."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_studyminimal.reports.effects import effect, holm

NUMBERS = st.floats(-1000, 1000, allow_nan=False).map(lambda value: round(value, 3))


def brute(means):
    observed = abs(sum(means))
    sums = [
        abs(sum(sign * mean for sign, mean in zip(signs, means, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(means))
    ]
    return sum(one >= observed - 1e-6 for one in sums) / len(sums)


def by_task(means):
    return {f"t{number}": [mean] for number, mean in enumerate(means)}


@given(st.lists(NUMBERS, min_size=2, max_size=8))
@settings(max_examples=50, deadline=None)
def test_the_sign_flip_is_what_brute_force_says(means):
    assert effect(by_task(means), "seed").p == pytest.approx(brute(means), abs=1e-9)


def test_six_tasks_that_all_agree_reach_the_least_probability():
    found = effect(by_task([1, 2, 3, 4, 5, 6]), "seed")

    assert found.p == found.least_p == 2 / 64
    assert found.estimate == 3.5


def test_repetitions_of_a_task_count_once_however_many():
    often = effect({"one": [10.0] * 50, "two": [-10.0]}, "seed")

    assert often.estimate == 0
    assert (often.pairs, len(often.by_task)) == (51, 2)


def test_many_tasks_are_drawn_and_agree_with_the_exact_test():
    means = [float(number % 7) - 2.5 for number in range(17)]

    assert effect(by_task(means), "a").p == pytest.approx(brute(means), abs=0.02)


def test_the_same_seed_gives_the_same_interval_and_it_holds_the_estimate():
    means = [1.0, 2.0, 4.0, 8.0, -3.0, 0.5]
    one, two = effect(by_task(means), "a"), effect(by_task(means), "a")

    assert one == two
    low, high = one.interval
    assert min(means) <= low <= one.estimate <= high <= max(means)
    assert effect(by_task(means), "b").interval != one.interval


@pytest.mark.slow
def test_the_interval_covers_about_as_often_as_it_says():
    import random

    chance, hits = random.Random(5), 0
    for number in range(60):
        means = [chance.gauss(1.0, 1.0) for _ in range(20)]
        low, high = effect(by_task(means), str(number)).interval
        hits += low <= 1.0 <= high
    assert 50 <= hits <= 60


@pytest.mark.parametrize("differences", [{}, {"one": []}, {"one": [1.0]}])
def test_too_little_says_nothing_but_what_it_is(differences):
    found = effect(differences, "seed")

    assert (found.interval, found.p, found.detectable) == (None, None, None)
    assert found.estimate == (1.0 if differences == {"one": [1.0]} else None)


def test_what_could_be_found_shrinks_with_the_root_of_the_tasks():
    few, many = by_task([1.0, -1.0] * 3), by_task([1.0, -1.0] * 12)

    ratio = effect(few, "s").detectable / effect(many, "s").detectable
    spread = statistics.stdev([1.0, -1.0] * 3) / statistics.stdev([1.0, -1.0] * 12)
    assert ratio == pytest.approx(2 * spread)


def test_holm_is_the_published_example():
    # Four tests of a worked example: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02.
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})

    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]
