"""The rule book: the highest finding decides, and every lower one is still recorded."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest

from pytest_studyminimal.protocol.records import ToolCall, Transcript
from pytest_studyminimal.protocol.rules import Facts, judge

MODEL = "claude-haiku-5-5"
HOSTILE = "evil\x1b[31m\nmodel\u202e\ud800\u2028" + "x" * 500


def transcript(**parts):
    plain = {
        "transport": "messages-api",
        "ending": "finished",
        "models": (MODEL,),
        "offered_tools": ("repo_read",),
        "answer": "It is one.",
        "answer_complete": True,
        "stop_reason": "end_turn",
    }
    return Transcript(**plain | parts)


def facts(**parts):
    plain = {"model": MODEL, "alias": False, "deadline_s": 300, "offered_tools": ("repo_read",)}
    return Facts(**plain | parts)


def call(server="docs", *, failed=False, refused=False):
    return ToolCall(name="search", server=server, is_error=failed, refused=refused)


# In the order of the table; the endings exclude each other, all else combines.
FINDINGS = [
    ("timed-out", {"ending": "deadline"}, {}, "the deadline of 300 s passed"),
    ("blocked", {"ending": "budget", "problem": "cap reached"}, {}, "cap reached"),
    ("failed", {"ending": "interrupted"}, {}, "the session was interrupted"),
    ("invalid-setup", {}, {"export_changes": ("a.py was changed",)}, "the export was changed"),
    ("invalid-setup", {"offered_tools": ("repo_read", "bash")}, {}, "offered tools differ"),
    ("invalid-setup", {"tool_calls": (call(failed=True),)}, {}, "every call to server docs failed"),
    ("invalid-cost", {"models": ("claude-opus",)}, {}, "served by model claude-opus"),
    ("budget-exceeded", {"ending": "attempt-budget", "problem": "cap of it"}, {}, "cap of it"),
    ("budget-exceeded", {}, {"overshoot_usd": Decimal("0.01")}, "charged 0.01 USD more than was"),
    ("failed", {"ending": "transport", "problem": "HTTP 500"}, {}, "HTTP 500"),
    ("failed", {"ending": "protocol", "problem": "usage is missing"}, {}, "usage is missing"),
]


@pytest.mark.parametrize(("status", "seen", "planned", "reason"), FINDINGS)
def test_each_finding_alone_decides_the_status(status, seen, planned, reason):
    judgement = judge(transcript(**seen), facts(**planned))

    assert judgement.status == status
    assert judgement.reason.startswith(reason)
    assert judgement.problems == (f"{status}: {judgement.reason}",)


def pairs():
    for higher, lower in itertools.combinations(FINDINGS, 2):
        if not (higher[1].keys() & lower[1].keys() or higher[2].keys() & lower[2].keys()):
            yield higher, lower


@pytest.mark.parametrize(("higher", "lower"), list(pairs()))
def test_the_higher_of_two_findings_wins_and_the_lower_is_recorded(higher, lower):
    judgement = judge(transcript(**higher[1] | lower[1]), facts(**higher[2] | lower[2]))

    if lower[0] == "budget-exceeded" == higher[0]:
        assert judgement.status == "budget-exceeded"
        return
    assert judgement.status == higher[0]
    assert judgement.reason.startswith(higher[3])
    assert [problem.partition(": ")[0] for problem in judgement.problems] == [higher[0], lower[0]]
    assert judgement.problems[1].partition(": ")[2].startswith(lower[3])


def test_all_that_can_be_wrong_at_once_is_recorded_in_the_order_of_the_table():
    seen = {"ending": "deadline", "offered_tools": (), "models": ("other",)}
    seen["tool_calls"] = (call(failed=True),)
    planned = {"export_changes": ("a",), "overshoot_usd": Decimal(1)}

    judgement = judge(transcript(**seen), facts(**planned))

    assert [problem.partition(":")[0] for problem in judgement.problems] == [
        *("timed-out", "invalid-setup", "invalid-setup", "invalid-setup"),
        *("invalid-cost", "budget-exceeded"),
    ]


def test_nothing_found_is_completed_without_a_reason():
    judgement = judge(transcript(), facts())

    assert (judgement.status, judgement.reason, judgement.problems) == ("completed", None, ())


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("finished", "completed"),
        ("deadline", "timed-out"),
        ("interrupted", "failed"),
        ("budget", "blocked"),
        ("attempt-budget", "budget-exceeded"),
        ("transport", "failed"),
        ("protocol", "failed"),
    ],
)
@pytest.mark.parametrize("problem", [None, "", "a public line"])
def test_an_ending_has_its_status_even_where_a_transport_gave_no_words(ending, status, problem):
    judgement = judge(transcript(ending=ending, problem=problem), facts())

    assert judgement.status == status
    assert judgement.reason or ending == "finished"


@pytest.mark.parametrize(
    ("stop_reason", "problem", "reason"),
    [
        ("max_tokens", None, "no usable answer (stop reason max_tokens)"),
        ("refusal", None, "no usable answer (stop reason refusal)"),
        ("tool_use", "the limit of 8 turns was reached", "the limit of 8 turns was reached"),
    ],
)
def test_a_valid_ending_without_an_answer_is_completed_and_says_why(stop_reason, problem, reason):
    seen = transcript(answer="", answer_complete=False, stop_reason=stop_reason, problem=problem)
    judgement = judge(seen, facts())

    assert (judgement.status, judgement.reason, judgement.problems) == ("completed", reason, ())


@pytest.mark.parametrize(
    ("alias", "models", "status"),
    [
        (False, (MODEL,), "completed"),
        (False, (f"{MODEL}-20261010",), "invalid-cost"),
        (True, (MODEL,), "completed"),
        (True, (f"{MODEL}-20261010",), "completed"),
        (True, (f"{MODEL}x",), "invalid-cost"),
        (True, ("claude-haiku-5",), "invalid-cost"),
        (True, (MODEL.upper(),), "invalid-cost"),
        (True, (f"{MODEL}-20261010", f"{MODEL}-20261111"), "invalid-cost"),
        (True, (MODEL, f"{MODEL}-20261010"), "invalid-cost"),
        (False, (MODEL, "other"), "invalid-cost"),
        (False, ("",), "invalid-cost"),
    ],
)
def test_only_an_alias_may_be_served_by_a_dated_model_and_only_by_one(alias, models, status):
    assert judge(transcript(models=models), facts(alias=alias)).status == status


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([call(failed=True)], "every call to server docs failed (1)"),
        ([call(failed=True)] * 3, "every call to server docs failed (3)"),
        ([call(failed=True), call()], None),
        ([call("api"), call(failed=True)], "every call to server docs failed (1)"),
        (
            [call("docs", failed=True), call("api", failed=True)],
            "every call to server api failed (1); every call to server docs failed (1)",
        ),
        ([call(None, failed=True)], None),
        ([call(failed=True, refused=True)], None),
        (
            [call(failed=True, refused=True), call(failed=True)],
            "every call to server docs failed (1)",
        ),
        ([call(refused=True), call(failed=True)], "every call to server docs failed (1)"),
        ([], None),
    ],
)
def test_a_server_of_which_every_call_failed_makes_the_setup_invalid(calls, reason):
    judgement = judge(transcript(tool_calls=tuple(calls)), facts())

    assert judgement.reason == reason
    assert judgement.status == ("invalid-setup" if reason else "completed")


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        ((), "missing ['repo_read'], extra none"),
        (("repo_read", "repo_read"), "missing none, extra ['repo_read']"),
        (("bash",), "missing ['repo_read'], extra ['bash']"),
    ],
)
def test_offered_tools_are_compared_one_by_one(offered, reason):
    judgement = judge(transcript(offered_tools=offered), facts())

    assert judgement.reason == f"offered tools differ from the plan: {reason}"


def test_the_order_of_offered_tools_does_not_matter():
    seen = transcript(offered_tools=("b", "a"))

    assert judge(seen, facts(offered_tools=("a", "b"))).status == "completed"


def test_a_call_that_cost_more_than_it_reserved_is_never_clamped_away():
    small = judge(transcript(), facts(overshoot_usd=Decimal("0.000000000001")))

    assert small.status == "budget-exceeded"
    assert small.reason == "charged 0.000000000001 USD more than was reserved"


@pytest.mark.parametrize(
    ("seen", "planned"),
    [
        ({"models": (HOSTILE,)}, {}),
        ({"models": (f"{MODEL}-{HOSTILE}", MODEL)}, {"alias": True}),
        ({"ending": "transport", "problem": HOSTILE}, {}),
        ({"ending": "budget", "problem": HOSTILE}, {}),
        ({"offered_tools": (HOSTILE,)}, {}),
        ({}, {"export_changes": (HOSTILE,)}),
        ({"tool_calls": (call(HOSTILE, failed=True),)}, {}),
        ({"answer_complete": False, "stop_reason": HOSTILE}, {}),
        ({"answer_complete": False, "problem": HOSTILE}, {}),
    ],
)
def test_hostile_words_of_a_provider_become_one_short_printable_line(seen, planned):
    judgement = judge(transcript(**seen), facts(**planned))

    for line in (judgement.reason, *judgement.problems):
        assert all(char.isprintable() for char in line)
        assert len(line) <= 320


def test_an_answer_without_its_form_is_failed_and_lets_others_follow():
    judgement = judge(transcript(), facts(answer_problem="malformed verdict: found nothing"))

    assert (judgement.status, judgement.stops) == ("failed", False)


def test_whatever_else_went_wrong_stops_also_beside_a_malformed_answer():
    lost = transcript(ending="transport", problem="HTTP 500")

    judgement = judge(lost, facts(answer_problem="malformed verdict"))

    assert (judgement.status, judgement.reason, judgement.stops) == ("failed", "HTTP 500", True)
