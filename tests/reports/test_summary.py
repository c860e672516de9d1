"""The closing section: exact, and what is missing is shown as missing."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from reported import ARMS, SERIES, STUDY, Reported, opened

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.reports.pairs import differences
from pytest_studyminimal.reports.pilots import completed_pilot, pilot_lines, pilots
from pytest_studyminimal.reports.summary import (
    NOT_EVIDENCE,
    UNKNOWN,
    arm_table,
    attempt_table,
    extrapolation,
    figures,
    heading,
    minutes,
    summary,
)

PAIR = ("one:plain:1", "one:docs:1")
FOUR = (*PAIR, "two:docs:1", "two:plain:1")
NOTHING = {"usage": None, "tool_calls": None, "turns": None, "wall_s": None}


@pytest.fixture
def ledger(tmp_path):
    with opened(tmp_path) as ledger:
        yield ledger


def section(run, *, verbose=False):
    return summary(run.view, verbose=verbose, ledger=Path("ledger.sqlite3"))


def cells(line):
    return line.split()


def line_with(lines, start):
    (found,) = [line for line in lines if line.startswith(start)]
    return found


def test_a_row_shows_status_turns_tools_tokens_dollars_and_seconds(ledger):
    run = Reported(ledger, PAIR)
    usage = Usage(
        input_tokens=1200, cache_read_tokens=34, cache_write_5m_tokens=1, output_tokens=56
    )
    run.observe(PAIR[0], "0.00088", turns=3, tool_calls=2, usage=usage, wall_s=12.34)
    run.observe(PAIR[1])

    head, first, _ = attempt_table(run.view.lines)

    assert cells(head) == ["attempt", "status", "turns", "tools", "in", "out", "charged", "seconds"]
    assert cells(first) == [
        *("one:plain:1", "completed", "3", "2", "1,235", "56", "$0.00088", "12.3")
    ]


def test_columns_stand_under_their_titles_and_no_line_ends_in_blanks(ledger):
    run = Reported(ledger, FOUR, cap="100")
    run.observe(FOUR[0], "0.0000004")
    run.observe(FOUR[1], "12.5")
    table = attempt_table(run.view.lines)

    ends = {line.index("$") + len(cells(line)[6]) for line in table[1:3]}
    assert ends == {table[0].index("charged") + len("charged")}
    assert all(line == line.rstrip() for line in table)


def test_zero_and_unknown_differ(ledger):
    run = Reported(ledger, FOUR)
    zero = Usage()
    run.observe(FOUR[0], "0", usage=zero, tool_calls=0, turns=0, wall_s=0.0)
    run.observe(FOUR[1], "0.10", status="failed", usage_complete=False, **NOTHING)
    _, first, second, third, _ = attempt_table(run.view.lines)

    assert cells(first)[2:7] == ["0", "0", "0", "0", "$0"]
    assert float(cells(first)[7]) == 0
    assert cells(second)[2:] == [UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "$0.1", UNKNOWN]
    assert cells(third)[1:] == ["blocked", *[UNKNOWN] * 6]
    assert figures(None) == (UNKNOWN,) * 6


def test_the_counts_of_an_attempt_that_lost_a_response_are_marked_incomplete(ledger):
    run = Reported(ledger, PAIR)
    run.observe(PAIR[0], status="failed", usage_complete=False)

    assert cells(attempt_table(run.view.lines)[1])[4:6] == ["1,000+?", "100+?"]
    assert cells(arm_table(run.view)[1])[5:7] == ["1,000+?", "100+?"]


SMALL = ["0.00088", "0.00119458", "0.0000004", "0", None, "12.5"]


def test_small_costs_are_shown_with_every_digit_and_add_up_exactly(ledger):
    names = [f"task-{number}:plain:1" for number in range(len(SMALL))]
    run = Reported(ledger, names, cap="100", phase="full")
    for name, charged in zip(names, SMALL, strict=True):
        if charged is not None:
            run.observe(name, charged)
    view = run.view
    total = money.total(Decimal(one) for one in SMALL if one)

    shown = [cells(line)[6] for line in attempt_table(view.lines)[1:]]
    assert shown == ["$0.00088", "$0.00119458", "$0.0000004", "$0", UNKNOWN, "$12.5"]
    assert total == Decimal("12.50207498")
    assert view.charged_usd == total
    assert cells(arm_table(view)[1])[-1] == "$12.50207498"
    assert section(run)[-2] == (
        "charged $12.50207498 in this run (upper rates); account little-study:"
        " $12.50207498 spent of $100"
    )


def test_an_arm_sums_its_attempts_and_shows_the_median_of_completed_ones(ledger):
    run = Reported(ledger, FOUR)
    run.observe(FOUR[0], "0.01", wall_s=10.0)
    run.observe(FOUR[1], "0.02", wall_s=20.5)
    run.observe(FOUR[2], "0.03", wall_s=30.0)
    run.observe(FOUR[3], "0.04", status="timed-out", wall_s=300.0)
    head, plain, docs = arm_table(run.view)

    assert head.split(maxsplit=7)[:7] == [
        *("arm", "attempts", "completed", "blocked", "other", "in", "out")
    ]
    assert cells(plain) == ["plain", "2", "1", "0", "1", "2,000", "200", "2", "10.0", "$0.05"]
    assert cells(docs) == ["docs", "2", "2", "0", "0", "2,000", "200", "2", "25.2", "$0.05"]


def test_an_arm_that_was_never_reached_has_dashes_and_no_zeros(ledger):
    run = Reported(ledger, FOUR)
    run.observe(FOUR[0], status="failed")
    docs = arm_table(run.view)[2]

    assert cells(docs) == ["docs", "2", "0", "2", "0", *[UNKNOWN] * 5]


def test_an_unknown_figure_of_a_charged_attempt_marks_the_sum_of_its_arm(ledger):
    run = Reported(ledger, FOUR)
    run.observe(FOUR[0])
    run.observe(FOUR[1])
    run.observe(FOUR[2])
    run.observe(FOUR[3], "0.10", status="failed", usage_complete=False, **NOTHING)
    _, plain, docs = arm_table(run.view)

    assert cells(plain)[5:8] == ["1,000+?", "100+?", "1+?"]
    assert cells(docs)[5:8] == ["2,000", "200", "2"]


def test_an_attempt_that_was_refused_before_any_call_hides_no_tokens(ledger):
    run = Reported(ledger, FOUR)
    run.observe(FOUR[0])
    run.record(FOUR[3], status="blocked", usage_complete=False, **NOTHING)

    assert cells(arm_table(run.view)[1])[3:8] == ["1", "0", "1,000", "100", "1"]


def test_a_reason_of_the_ledger_is_one_printable_line(ledger):
    run = Reported(ledger, PAIR)
    run.observe(PAIR[0], status="failed", reason="evil\x1b[31m\nline\u2028\u202e")

    for line in section(run, verbose=True):
        assert all(char.isprintable() for char in line)
    assert attempt_table(run.view.lines)[1].endswith("  evil\\x1b[31m\\x0aline\\u2028\\u202e")


def test_a_summary_never_holds_an_answer(ledger):
    run = Reported(ledger, PAIR)
    for name in PAIR:
        run.observe(name)

    assert "private words" not in "\n".join(section(run, verbose=True))


def test_the_heading_says_what_was_run(ledger):
    whole = Reported(ledger, PAIR)
    part = Reported(
        ledger, PAIR, run="run-2", phase="full", selected=[PAIR[0]], not_selected=[PAIR[1]]
    )
    rehearsed = Reported(ledger, PAIR, run="run-3", rehearsal=True)

    assert heading(whole.view) == "study little-study · pilot"
    assert heading(part.view) == "study little-study · full · partial (1 of 2)"
    assert heading(rehearsed.view) == "study little-study · pilot · rehearsal, not evidence"


def test_a_narrowed_run_lists_only_what_was_selected_and_is_never_complete(ledger):
    run = Reported(ledger, PAIR, selected=[PAIR[0]], not_selected=[PAIR[1]])
    run.observe(PAIR[0])
    view = run.view

    assert [line.status for line in view.lines] == ["completed", "not selected"]
    assert view.selected_completed
    assert not view.completed
    assert len(attempt_table(view.selected)) == 2
    assert extrapolation(view)[-1].startswith("extrapolation: missing")


def test_an_attempt_in_progress_is_open_and_one_after_it_blocked(ledger):
    run = Reported(ledger, PAIR)
    run.budget.start(PAIR[0])
    run.budget.reserve(PAIR[0], Decimal("0.10"))

    assert [line.status for line in run.view.lines] == ["open", "blocked"]
    assert section(run)[-2].endswith("$0 spent, $0.1 reserved of $1")


def paired(run):
    lines = section(run)
    start = next(i for i, line in enumerate(lines) if line.startswith("paired"))
    return lines[start : start + 2]


def test_the_arms_are_compared_pair_by_pair(ledger):
    run = Reported(ledger, (*FOUR, "three:plain:1", "three:docs:1"), phase="full")
    for task, (plain, docs) in {
        "one": ("0.01", "0.04"),
        "two": ("0.02", "0.01"),
        "three": ("0.01", "0.03"),
    }.items():
        run.observe(f"{task}:plain:1", plain, usage=Usage(input_tokens=5000, output_tokens=10))
        run.observe(f"{task}:docs:1", docs, tool_calls=4, wall_s=7.5)

    assert paired(run) == [
        "paired differences, docs − plain (median of 3 pairs):",
        "  tokens in −4,000 · tokens out +90 · tools +3 · seconds −2.5 · charged USD +0.02",
    ]


def test_no_difference_is_shown_as_such_and_a_single_pair_as_one(ledger):
    run = Reported(ledger, PAIR)
    for name in PAIR:
        run.observe(name)

    assert paired(run) == [
        "paired differences, docs − plain (median of 1 pair):",
        "  tokens in ±0 · tokens out ±0 · tools ±0 · seconds ±0 · charged USD ±0",
    ]


def test_a_pair_with_a_missing_side_is_listed_as_missing_and_never_as_no_difference(ledger):
    run = Reported(ledger, FOUR)
    run.observe(FOUR[0], "0.01")
    run.observe(FOUR[1], "0.02")
    run.observe(FOUR[2], "0.90", status="failed")

    arms, figures = paired(run)
    assert "(median of 1 pair, 1 missing)" in arms
    assert figures.endswith("charged USD +0.01")


def test_without_a_whole_pair_there_is_no_difference_at_all(ledger):
    run = Reported(ledger, FOUR)
    run.observe(FOUR[0])

    assert line_with(section(run), "paired") == (
        "paired differences, docs − plain: no complete pair, 2 missing"
    )


def test_a_metric_that_is_unknown_on_one_side_is_left_out(ledger):
    run = Reported(ledger, PAIR)
    run.observe(PAIR[0], usage_complete=False)
    run.observe(PAIR[1], wall_s=None)
    (found,) = differences(run.view.lines, ARMS)

    assert set(found.medians) == {"tools", "charged USD"}


def test_repetitions_are_pairs_of_their_own(ledger):
    run = Reported(ledger, ("one:plain:1", "one:docs:1", "one:docs:2", "one:plain:2"))
    for name, charged in zip(run.planned, ("0.01", "0.02", "0.04", "0.01"), strict=True):
        run.observe(name, charged)
    (found,) = differences(run.view.lines, ARMS)

    assert (found.pairs, found.missing) == (2, 0)
    assert found.medians["charged USD"] == Decimal("0.02")


def test_every_later_arm_is_compared_with_the_first(ledger):
    arms = ("plain", "docs", "more")
    run = Reported(ledger, [f"one:{arm}:1" for arm in arms], scenarios=list(arms))
    for name in run.planned:
        run.observe(name)

    found = differences(run.view.lines, arms)
    assert [(one.first, one.second) for one in found] == [("plain", "docs"), ("plain", "more")]


def test_a_complete_pilot_is_extrapolated_and_says_that_it_is_no_bound(ledger):
    run = Reported(ledger, PAIR, full_attempts=12)
    run.observe(PAIR[0], "0.00088", wall_s=30.0)
    run.observe(PAIR[1], "0.00119458", wall_s=90.0)

    assert extrapolation(run.view) == [
        "pilot cost: one:plain:1 $0.00088, one:docs:1 $0.00119458",
        "extrapolation: $0.00207458 × 6 = $0.01244748 and about 12 min for the full run of 12 attempts",
        "this is no upper bound: a pilot of one task cannot predict the others",
    ]
    assert set(extrapolation(run.view)) <= set(section(run))


def test_a_factor_that_is_no_whole_number_is_a_fraction(ledger):
    run = Reported(ledger, FOUR, full_attempts=18)
    for name in FOUR:
        run.observe(name, "0.01")

    assert "$0.04 × 18/4 = $0.18" in extrapolation(run.view)[1]


@pytest.mark.parametrize(
    "second",
    [
        {"status": "failed"},
        {"usage_complete": False},
        {"answer_complete": False},
        None,
    ],
)
def test_there_is_no_extrapolation_unless_every_pilot_attempt_is_complete(ledger, second):
    run = Reported(ledger, PAIR)
    run.observe(PAIR[0])
    if second is not None:
        run.observe(PAIR[1], **second)

    lines = extrapolation(run.view)
    assert lines[-1] == "extrapolation: missing, since not every pilot attempt is complete"
    assert not any("×" in line for line in lines)


def test_a_full_run_is_not_extrapolated(ledger):
    run = Reported(ledger, PAIR, phase="full")
    for name in PAIR:
        run.observe(name)

    assert not any("extrapolation" in line for line in section(run))


def test_a_stopped_run_says_where_why_and_what_to_do(ledger):
    run = Reported(ledger, FOUR)
    run.observe(FOUR[0])
    run.observe(FOUR[1], status="invalid-cost", reason="served by model x, required y")
    run.close("stopped")

    lines = section(run)
    assert line_with(lines, "the run stopped") == (
        "the run stopped at one:docs:1 with invalid-cost (served by model x, required y);"
        " 2 not reached and shown as blocked"
    )
    assert "nothing is retried or resumed: mend the cause and start a new run" in lines


def test_a_stop_without_an_attempt_says_why(ledger):
    run = Reported(ledger, PAIR)
    run.budget.stop("a worker was\nlost")

    assert line_with(section(run), "the run stopped") == (
        "the run stopped with a worker was\\x0alost; 2 not reached and shown as blocked"
    )


@pytest.mark.parametrize(
    ("observed", "left"), [(1, "1 attempt not reached"), (0, "2 attempts not reached")]
)
def test_a_run_that_ended_early_says_so(ledger, observed, left):
    run = Reported(ledger, PAIR)
    for name in PAIR[:observed]:
        run.observe(name)
    unclosed = section(run)
    run.close("interrupted")

    assert f"the run ended early (the session ended): {left}; start a new run" in unclosed
    assert f"the run ended early (interrupted): {left}; start a new run" in section(run)


def test_a_completed_run_says_nothing_of_a_stop(ledger):
    run = Reported(ledger, PAIR)
    for name in PAIR:
        run.observe(name)

    assert not any(line.startswith("the run ") for line in section(run))


def test_an_exceeded_cap_is_said_in_capitals(ledger):
    run = Reported(ledger, PAIR, cap="0.10")
    run.budget.start(PAIR[0])
    seq = run.budget.reserve(PAIR[0], Decimal("0.10"))
    run.budget.settle(seq, Decimal("0.15"), measured=True)
    run.record(PAIR[0], "0.15", status="budget-exceeded", cumulative_cap_exceeded=True)

    assert section(run)[-2].endswith(
        "$0.15 spent of $0.1 · THE CAP WAS EXCEEDED by what the provider charged"
    )


def test_a_rehearsal_is_marked_as_no_evidence(ledger):
    run = Reported(ledger, PAIR, rehearsal=True, account="rehearsal:run-1")
    lines = section(run)

    assert NOT_EVIDENCE in lines
    assert lines[-3].startswith("proven: tool sets ")
    assert "account rehearsal:run-1" in lines[-4]


def test_a_long_run_lists_its_attempts_only_when_asked(ledger):
    names = [f"task-{number}:plain:1" for number in range(41)]
    run = Reported(ledger, names)

    assert not any(line.startswith("task-0") for line in section(run))
    assert line_with(section(run, verbose=True), "task-40:plain:1")
    assert section(run)[-1] == "ledger ledger.sqlite3 · run run-1"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "a second"),
        (1, "1 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
    ],
)
def test_durations_are_for_people(seconds, text):
    assert minutes(seconds) == text


def test_the_newest_completed_pilot_of_the_same_series_is_found(ledger):
    other = SERIES.model_copy(update={"model": "other", "prices": "e" * 64})
    for run, series, done in (
        ("run-1", SERIES, True),
        ("run-2", other, True),
        ("run-3", SERIES, True),
        ("run-4", SERIES, False),
    ):
        body = {**series.model_dump(mode="json"), "id": series.id}
        one = Reported(ledger, PAIR, run=run, series=body)
        for name in PAIR[: 2 if done else 1]:
            one.observe(name)
    Reported(ledger, PAIR, run="run-5", phase="full")

    assert [pilot.row.run for pilot in pilots(ledger)] == ["run-4", "run-3", "run-2", "run-1"]
    assert completed_pilot(ledger, SERIES)[0].row.run == "run-3"
    assert completed_pilot(ledger, other)[0].row.run == "run-2"


def test_without_a_pilot_of_the_series_the_newest_other_one_says_what_differs(ledger):
    third = SERIES.model_copy(update={"runner": "f" * 64})
    assert completed_pilot(ledger, SERIES) == (None, ())
    run = Reported(ledger, PAIR)
    for name in PAIR:
        run.observe(name)

    assert completed_pilot(ledger, third) == (None, ("runner",))


def test_the_newest_pilot_says_what_it_measured(ledger):
    assert pilot_lines(ledger) == []
    run = Reported(ledger, PAIR)
    for name in PAIR:
        run.observe(name, "0.0000004")

    assert pilot_lines(ledger) == [
        "pilot run-1 measured 2,000 tokens in, 200 out, $0.0000008, 20 s",
        "extrapolation: $0.0000008 × 6 = $0.0000048 and about 2 min for the full run of 12 attempts",
    ]


def test_an_account_of_one_study_is_shown_with_what_earlier_runs_spent(ledger):
    first = Reported(ledger, PAIR)
    first.observe(PAIR[0], "0.30")
    second = Reported(ledger, PAIR, run="run-2")
    second.observe(PAIR[0], "0.10")

    assert section(second)[-2] == (
        f"charged $0.1 in this run (upper rates); account {STUDY}: $0.4 spent of $1"
    )


def test_the_commit_of_the_study_is_said_where_it_is_known(ledger):
    clean = Reported(ledger, PAIR, study_folder={"commit": "a" * 40, "dirty": False})

    assert section(clean)[-1].endswith(" · study at commit aaaaaaaaaaaa, unchanged")
