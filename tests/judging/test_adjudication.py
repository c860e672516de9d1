"""Blind packets out and verdicts in, over a real run: bound by hash, all or none, never a guess."""

from __future__ import annotations

import json
import shutil
import stat

import pytest
import sessions

import studies
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.evidence.verification import verify

TASKS = ("alpha", "beta")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A rehearsal of two tasks in both arms; tests work on copies of it."""
    study = studies.make_study(tmp_path_factory.mktemp("ran"), tasks=TASKS)
    study.add("\n[pilot]\ntasks = 2\nrepetitions = 1\n")
    ended = sessions.run(study)
    assert ended.status == 0, ended.out + ended.err
    return study


@pytest.fixture
def study(ran, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ran.folder.parents[1], copy)
    return studies.TinyStudy(
        copy / "studies" / "tiny", copy / "checkout", copy / "state" / "ledger.sqlite3"
    )


def command(study, action, *more):
    return sessions.studyminimal(
        "adjudication",
        action,
        study.folder,
        *more,
        f"--study-root=corpus={study.checkout}",
        f"--ledger={study.ledger}",
    )


def exported(study):
    done = command(study, "export")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def verdict(packet, outcome="correct", finding="supported", **parts):
    return {
        "packet": packet["packet"],
        "answer_sha256": packet["answer_sha256"],
        "key_sha256": packet["key_sha256"],
        "adjudicator": {"kind": "agent", "name": "judge-1", "session": "s"},
        "outcome": outcome,
        "propositions": [
            {"proposition": one["proposition"], "finding": finding, "reason": "it says so"}
            for one in packet["expected_propositions"]
        ],
        **parts,
    }


def brought(study, tmp_path, verdicts):
    file = tmp_path / "verdicts.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in verdicts))
    return command(study, "import", file)


def report(study):
    done = sessions.studyminimal("report", study.ledger, "--format", "json")
    return json.loads(done.stdout)


def test_a_packet_holds_answer_key_and_sources_and_no_word_of_an_arm(study):
    packets = exported(study)

    assert [one["packet"] for one in packets] == ["p01", "p02", "p03", "p04"]
    for packet in packets:
        assert packet["answer"]
        assert packet["expected_propositions"][0]["text"].startswith("PROPOSITION")
        assert packet["sources"] == {"docs/budget.md": studies.FILES["docs/budget.md"]}
        ours = json.dumps({name: packet[name] for name in ("packet", "instructions")})
        assert not any(word in ours for word in ("plain", "docs", "doc_search", "scenario"))
        assert set(packet) == {
            *("packet", "instructions", "answer_sha256", "key_sha256", "answer"),
            *("expected_propositions", "sources", "cited_lines"),
        }


def test_the_order_is_the_same_every_time_and_not_the_order_of_the_attempts(study):
    assert exported(study) == exported(study)


def test_an_export_to_a_file_is_private_and_never_overwrites(study, tmp_path):
    out = tmp_path / "packets.jsonl"
    assert command(study, "export", f"--output={out}").returncode == 0

    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    again = command(study, "export", f"--output={out}")
    assert (again.returncode, again.stderr.count("\n")) == (4, 1)


def test_verdicts_become_outcomes_of_a_report_and_the_ledger_stays_whole(study, tmp_path):
    packets = exported(study)
    done = brought(
        study,
        tmp_path,
        [
            verdict(packets[0]),
            verdict(packets[1], "incorrect", "contradicted"),
            verdict(packets[2], "correct", "missing"),
        ],
    )

    assert done.returncode == 0, done.stderr
    assert "p03: disputed: stated correct, its findings say incomplete; missing" in done.stdout
    seen = report(study)
    everything = seen["correctness"]["all"]
    assert (everything["correct"], everything["incorrect"], everything["n"]) == (1, 1, 2)
    assert everything["missing_because"] == {"disputed": 1, "not adjudicated": 1}
    assert everything["range"] == ["0.25", "0.75"]
    assert seen["declarations"]["adjudication"] == (
        "correctness is agent-adjudicated; no human review was performed"
    )
    with Ledger.read(study.ledger) as ledger:
        assert verify(ledger.records()).problems == ()


def test_adjudicators_that_differ_leave_the_outcome_missing(study, tmp_path):
    (packet, *_) = exported(study)
    other = {"kind": "human", "name": "somebody"}
    assert brought(study, tmp_path, [verdict(packet)]).returncode == 0
    assert (
        brought(
            study, tmp_path, [verdict(packet, "incorrect", "contradicted", adjudicator=other)]
        ).returncode
        == 0
    )

    seen = report(study)

    assert seen["correctness"]["all"]["missing_because"]["adjudicators differ"] == 1
    assert seen["correctness"]["agreement"] == {"judged_by_several": 1, "agreed": 0}
    assert seen["declarations"]["adjudication"] == "correctness is adjudicated by agent and human"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"outcome": "fine"}, "outcome"),
        ({"packet": "p99"}, "packet: found p99, required one of this run's"),
        ({"answer_sha256": "0" * 64}, "answer_sha256: found another answer's"),
        ({"key_sha256": "0" * 64}, "key_sha256: found another key's"),
        ({"propositions": []}, "propositions"),
        ({"more": 1}, "found an unknown key"),
    ],
)
def test_a_verdict_that_is_not_one_is_refused_and_none_of_its_file_is_kept(
    study, tmp_path, change, told
):
    packets = exported(study)

    done = brought(study, tmp_path, [verdict(packets[0]), {**verdict(packets[1]), **change}])

    assert done.returncode == 4
    assert done.stderr.startswith("studyminimal: line 2: ")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert study.records("verdict") == []


def test_a_key_that_changed_since_the_run_is_refused(study):
    key = study.folder / "answers.toml"
    key.write_text(key.read_text() + "# a change\n")

    done = command(study, "export")

    assert done.returncode == 4
    assert "found another protocol or answer key" in done.stderr
