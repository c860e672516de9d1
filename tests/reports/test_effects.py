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


# Published examples


def test_fishers_own_example_of_the_sign_flip():
    """Darwin's maize: Fisher, The Design of Experiments, §21: 863 of 32,768 sums are 314 or more."""
    eighths = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]

    found = effect(by_task([float(one) for one in eighths]), "any")

    assert sum(eighths) == 314
    assert found.p == pytest.approx(2 * 863 / 32_768, abs=1e-12)
    # Student's own figures for the same pairs: mean 20.93, t = 2.148 with 14 degrees of freedom.
    assert found.estimate == pytest.approx(20.9333, abs=1e-4)
    assert found.estimate / found.standard_error == pytest.approx(2.148, abs=1e-3)


def test_holms_step_down_on_a_published_example():
    """The four hypotheses of the usual textbook table; statsmodels' `multipletests` gives the same."""
    found = holm({"h1": 0.01, "h2": 0.04, "h3": 0.03, "h4": 0.005})

    assert found == pytest.approx({"h1": 0.03, "h2": 0.06, "h3": 0.06, "h4": 0.02})


@pytest.mark.parametrize("means", [[1.0, 2.0, 4.0], [3.0, -1.0, 0.5, 7.0], [0.0, 0.0, 5.0, 5.0]])
def test_the_interval_is_the_one_of_all_resamples(means):
    every = sorted(statistics.fmean(drawn) for drawn in itertools.product(means, repeat=len(means)))
    bounds = (every[int(0.025 * len(every))], every[int(0.975 * len(every))])

    assert effect(by_task(means), "seed").interval == pytest.approx(bounds, abs=0.3)


def test_the_effect_is_scipys_own_of_one_sample_of_task_means():
    from scipy import stats

    means = [4.0, -1.5, 2.25, 8.0, 0.5, 3.0, 3.5]
    found = effect({f"t{n}": [mean - 1, mean, mean + 1] for n, mean in enumerate(means)}, "seed")

    assert found.standard_error == pytest.approx(stats.sem(means))
    assert found.by_task == {f"t{n}": mean for n, mean in enumerate(means)}
    assert found.p == pytest.approx(brute(means))
