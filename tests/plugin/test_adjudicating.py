"""`--study adjudicate`: blind packets, one at a time, paid from the account of the run that they judge."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal

import pytest
import sessions
from providers import Response, message, text, tool_use, tools

import studies

TASKS = ("alpha", "beta")
TEST_FILE = (
    "def test_attempt(study_attempt):\n    study_attempt.run()\n\n\n"
    "def test_adjudication(study_adjudication):\n    study_adjudication.run()\n"
)
ANSWER = "The cap is cumulative, docs/budget.md:3, as doc_search said. SECRET-ANSWER"
JUDGE = '\n[adjudicator]\nconnection = "http"\nattempt_usd = "{usd}"\n'


def packet_of(request):
    """The packet in a request to an adjudicator, None in an agent's."""
    question = request.json["messages"][0]["content"]
    _, separator, packet = question.rpartition("\n\n{")
    return json.loads("{" + packet) if separator else None


def verdict(packet, finding="supported", outcome="correct", **parts):
    found = {
        "packet": packet["packet"],
        "outcome": outcome,
        "propositions": [
            {"proposition": one["proposition"], "finding": finding, "reason": "R", "citation": ""}
            for one in packet["expected_propositions"]
        ],
        "material_false_assertions": [],
        **parts,
    }
    return json.dumps(found)


class Judge:
    """Answers as an agent, and judges packets as it is told: by number of the verdict asked for."""

    def __init__(self, *script):
        self.script = script
        self.packets = []
        self.requests = []

    def __call__(self, request, _stop):
        packet = packet_of(request)
        if packet is None:
            if request.answered_tools == 0:
                return Response(tools(tool_use(query="cap")))
            return Response(message(text(ANSWER)))
        self.packets.append(packet)
        self.requests.append(request.json)
        number = len(self.packets) - 1
        say = self.script[number] if number < len(self.script) else verdict
        told = say(packet)
        return told if isinstance(told, Response) else Response(message(text(told)))


def make(base, provider, usd="0.10"):
    study = studies.make_study(
        base, base_url=provider and provider.base_url, tasks=TASKS, parallel=True
    )
    study.edit("[schedule]", "[pilot]\ntasks = 2\n[schedule]")
    study.add(JUDGE.format(usd=usd))
    (base / "pytest.ini").write_text("[pytest]\n")
    (study.folder / "test_tiny.py").write_text(TEST_FILE, encoding="utf-8")
    return study


def report(study):
    done = sessions.studyminimal("report", study.ledger, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def verdicts(study):
    return {record.body["packet"]: record for record in study.records("verdict")}


@pytest.fixture(scope="module")
def provider():
    """One address for all of these tests, since it is part of the protocol; each scripts its answers."""
    with sessions.behaving(Judge()) as provider:
        yield provider


@pytest.fixture(scope="module")
def answered(provider, tmp_path_factory):
    """A study whose full run is complete; tests work on copies of it."""
    study = make(tmp_path_factory.mktemp("answered"), provider)
    assert sessions.run(study).status == 0
    ended = sessions.run(study, "--approve-budget", phase="full")
    assert ended.status == 0, ended.out + ended.err
    return study


@pytest.fixture
def judged(answered, provider, tmp_path):
    """Return a function that scripts the judge and gives a copy of the answered study with it."""

    def start(*script):
        copy = tmp_path / "copy"
        shutil.copytree(answered.folder.parents[1], copy)
        provider.behave = Judge(*script)
        state = copy / "state" / "ledger.sqlite3"
        return studies.TinyStudy(
            copy / "studies" / "tiny", copy / "checkout", state
        ), provider.behave

    return start


def test_every_answer_is_judged_once_and_blind_and_the_report_has_the_outcomes(judged):
    study, judge = judged()

    ended = sessions.run(study, "-v", "--junitxml=junit.xml", phase="adjudicate")

    assert ended.status == 0, ended.out + ended.err
    assert [one["packet"] for one in judge.packets] == ["p01", "p02", "p03", "p04"]
    for request in judge.requests:
        assert len(request["messages"]) == 1
        assert "tools" not in request
        assert "system" not in request
        packet = packet_of(sessions.Request(request, 0))
        assert set(packet) == {
            *("packet", "answer", "expected_propositions", "sources", "cited_lines"),
        }
        instructions = request["messages"][0]["content"].partition("\n\n{")[0]
        assert not any(word in instructions for word in ("plain", "docs", "alpha", "beta"))
    assert "2 correct" not in ended.out
    assert "4 correct" in ended.out
    found = report(study)
    assert found["correctness"]["all"]["correct"] == 4
    assert found["correctness"]["all"]["missing"] == 0
    record = verdicts(study)["p01"]
    assert record.body["adjudicator"]["kind"] == "agent"
    assert record.body["adjudicator"]["name"] == "claude-haiku-5-5"
    assert record.body["adjudicator"]["session"] == study.records("run")[-1].run
    assert record.body["same_model"] is True
    row = study.records("run")[-1].body
    assert row["judges"]["run"] == record.run
    assert len(row["judges"]["order_seed"]) == 64
    assert [one["id"] for one in row["planned"]] == ["p01", "p02", "p03", "p04"]


def test_what_is_shown_of_an_adjudication_names_no_arm_no_task_and_nothing_private(
    judged, tmp_path
):
    study, _ = judged()

    reports = [
        f"--junitxml={tmp_path}/j.xml",
        "--json-report",
        f"--json-report-file={tmp_path}/j.json",
    ]
    ended = sessions.run(study, "-vv", "-rA", *reports, phase="adjudicate")

    shown = ended.out + ended.err
    files = (tmp_path / "j.xml").read_text() + (tmp_path / "j.json").read_text()
    for private in ("SECRET-ANSWER", "PROPOSITION-", studies.KEY):
        assert private not in shown + files
    for telling in ("alpha", "beta", "plain", "docs:"):
        assert telling not in shown
    cases = sessions.junit(tmp_path / "j.xml")
    assert sorted(cases) == ["p01", "p02", "p03", "p04"]
    for name, (kinds, properties) in cases.items():
        assert kinds == []
        assert properties["packet"] == name
        assert not {"task", "scenario", "repetition"} & set(properties)
        assert properties["status"] == "completed"


def test_a_verdict_costs_the_account_that_the_cap_is_of(judged):
    study, _ = judged()
    before = study.records()[-1].balance.committed_usd

    assert sessions.run(study, phase="adjudicate").status == 0

    records = study.records()
    assert records[-1].account == "tiny"
    spent = sum(
        Decimal(one.body["charged_usd"])
        for one in records
        if one.kind == "settle" and one.run == study.records("run")[-1].run
    )
    assert spent > 0
    assert records[-1].balance.committed_usd == before + spent
    assert [one.body["phase"] for one in study.records("approval")] == ["pilot", "full"]
    sessions.check_closed(study)


def test_no_cap_but_the_one_last_approved_holds_and_only_an_approval_raises_it(judged):
    study, judge = judged()
    spent = study.records()[-1].balance.committed_usd

    tight = sessions.run(
        study, f"--study-budget-usd={spent + Decimal('0.0001')}", phase="adjudicate"
    )

    assert (tight.status, judge.packets) == (1, [])
    assert sessions.statuses(study) == {f"p0{number}": "blocked" for number in range(1, 5)}
    # The lower cap was a decision as well, so it holds until somebody approves another one.
    assert sessions.run(study, "--study-budget-usd=5", phase="adjudicate").status == 1
    assert judge.packets == []
    raised = sessions.run(study, "--approve-budget", phase="adjudicate")
    assert raised.status == 0, raised.out
    assert len(judge.packets) == 4


@pytest.mark.parametrize(
    ("say", "found"),
    [
        (lambda _: "It is correct.", "found no JSON object"),
        sessions.slow(lambda one: verdict({**one, "packet": "p99"}), "on another packet"),
        sessions.slow(lambda one: verdict(one, propositions=[]), "propositions: found"),
        sessions.slow(lambda one: verdict(one, outcome="right"), "outcome: found"),
        sessions.slow(lambda one: verdict(one, confidence=1), "unknown key"),
        sessions.slow(lambda one: verdict(one)[:-1] + ', "outcome": "partial"}', "each key once"),
        sessions.slow(
            lambda one: Response(message(text(verdict(one)[:40]), stop_reason="max_tokens")),
            "no complete verdict",
        ),
    ],
    ids=["prose", "another packet", "none", "outcome", "unknown key", "twice", "cut"],
)
def test_a_malformed_verdict_fails_alone_and_is_never_guessed_or_asked_for_again(
    judged, say, found
):
    study, judge = judged(verdict, say)

    ended = sessions.run(study, phase="adjudicate")

    assert ended.status == 1
    assert sessions.statuses(study)["p02"] == "failed"
    assert found in sessions.observed(study)["p02"].reason
    assert len(judge.packets) == 4, "the others were judged all the same"
    correctness = report(study)["correctness"]["all"]
    assert correctness["correct"] == 3
    assert correctness["missing_because"] == {"failed adjudication": 1}
    assert sessions.observed(study)["p02"].charged_usd > 0
    again = sessions.run(study, phase="adjudicate")
    assert (again.status, len(again.error_lines), len(judge.packets)) == (4, 1, 4)
    assert "every answer judged by claude-haiku-5-5 before" in again.err


@pytest.mark.slow
def test_a_verdict_in_one_code_fence_is_one(judged):
    study, _ = judged(lambda packet: f"```json\n{verdict(packet)}\n```\n")

    assert sessions.run(study, phase="adjudicate").status == 0


def test_a_verdict_against_its_own_findings_is_disputed_and_missing(judged):
    study, _ = judged(lambda packet: verdict(packet, "missing", "correct"))

    ended = sessions.run(study, phase="adjudicate")

    assert ended.status == 0
    assert "1 disputed" in ended.out
    assert report(study)["correctness"]["all"]["missing_because"] == {"disputed": 1}


def test_a_lost_response_stops_the_session_and_the_next_one_judges_what_was_left(judged):
    study, judge = judged(verdict, lambda _: Response({"type": "error"}, status=500))

    ended = sessions.run(study, phase="adjudicate")

    assert ended.status == 1
    assert sessions.statuses(study) == {
        "p01": "completed",
        "p02": "failed",
        "p03": "blocked",
        "p04": "blocked",
    }
    assert len(judge.packets) == 2
    assert sessions.run(study, phase="adjudicate").status == 0
    assert sessions.statuses(study) == {"p02": "completed", "p03": "completed", "p04": "completed"}
    assert [one["packet"] for one in judge.packets] == ["p01", "p02", "p02", "p03", "p04"]
    assert sorted(verdicts(study)) == ["p01", "p02", "p03", "p04"]


def test_workers_judge_the_same_packets_in_the_same_order(judged):
    study, judge = judged()

    ended = sessions.run(study, "-n", "2", phase="adjudicate")

    assert ended.status == 0, ended.out + ended.err
    assert sorted(one["packet"] for one in judge.packets) == ["p01", "p02", "p03", "p04"]
    assert sorted(verdicts(study)) == ["p01", "p02", "p03", "p04"]
    sessions.check_closed(study)


def test_a_packet_that_its_cap_could_not_pay_is_refused_before_any_money(judged):
    study, judge = judged()

    ended = sessions.run(study, "--study-attempt-budget-usd=0.0001", phase="adjudicate")

    assert (ended.status, len(ended.error_lines)) == (4, 1)
    assert "adjudicator.attempt_usd" in ended.err
    assert judge.packets == []


def test_a_rehearsal_judges_rehearsals_and_no_paid_run(judged):
    study, judge = judged()

    ended = sessions.run(study, "--study-rehearse", phase="adjudicate")
    assert (ended.status, len(ended.error_lines)) == (4, 1)
    assert "found no rehearsed full run" in ended.err
    run = study.records("run")[-1].run
    ended = sessions.run(study, "--study-rehearse", f"--study-run={run}", phase="adjudicate")
    assert (ended.status, len(ended.error_lines)) == (4, 1)
    assert "a scripted one judges no evidence" in ended.err
    assert judge.packets == []


@pytest.mark.slow
def test_a_dress_rehearsal_is_judged_by_one_for_nothing(judged):
    study, judge = judged()
    assert sessions.run(study, "--study-rehearse", phase="full").status == 0

    ended = sessions.run(study, "--study-rehearse", phase="adjudicate")

    assert ended.status == 0, ended.out + ended.err
    assert judge.packets == []
    assert "nothing here is evidence" in ended.out
    assert all(record.body["rehearsal"] for record in study.records("verdict"))


@pytest.mark.parametrize(
    ("arguments", "phase", "found"),
    [
        (["--study-run=nobody"], "adjudicate", "found no run 'nobody'"),
        (["--study-run=x"], "pilot", "--study-run: found without --study adjudicate"),
        (["--study-connection=http"], "adjudicate", "the manifest declares who judges"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_one_line(judged, arguments, phase, found):
    study, judge = judged()

    ended = sessions.run(study, *arguments, phase=phase)

    assert (ended.status, len(ended.error_lines)) == (4, 1)
    assert found in ended.err
    assert judge.packets == []


def test_without_a_declared_adjudicator_the_line_names_the_way_to_another_judge(tmp_path):
    study = make(tmp_path, None)
    study.edit(JUDGE.format(usd="0.10"), "")

    ended = sessions.run(study, phase="adjudicate")

    assert (ended.status, len(ended.error_lines)) == (4, 1)
    assert "found no [adjudicator]" in ended.err
    assert "studyminimal adjudication export" in ended.err


@pytest.mark.slow
def test_a_changed_key_is_seen_before_anything_is_asked(judged):
    study, judge = judged()
    key = study.folder / "answers.toml"
    key.write_text(key.read_text().replace("PROPOSITION-alpha", "Another proposition"))

    ended = sessions.run(study, phase="adjudicate")

    assert (ended.status, len(ended.error_lines)) == (4, 1)
    assert "another protocol or answer key" in ended.err
    assert judge.packets == []


@pytest.mark.slow
def test_one_packet_may_be_chosen_and_the_rest_judged_later(judged):
    study, judge = judged()

    assert sessions.run(study, "-k", "p03", phase="adjudicate").status == 0
    assert [one["packet"] for one in judge.packets] == ["p03"]
    assert sessions.run(study, phase="adjudicate").status == 0
    assert [one["packet"] for one in judge.packets] == ["p03", "p01", "p02", "p04"]
