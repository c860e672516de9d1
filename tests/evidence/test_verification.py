"""A ledger that somebody changed: every kind of change is found, in the file and in an export of it."""

from __future__ import annotations

import json
import sqlite3
from decimal import Decimal

import pytest
from ledgers import begin, observation, opened

from pytest_studyminimal.cli import main
from pytest_studyminimal.evidence.verification import exported, read_export, verify
from pytest_studyminimal.protocol.errors import LedgerError

ONE, TWO = "one:plain:1", "one:plain:2"


@pytest.fixture
def path(tmp_path):
    place = tmp_path / "state" / "ledger.sqlite3"
    with opened(place) as ledger:
        budget = begin(ledger, (ONE, TWO))
        for name, usd, charged in ((ONE, "0.20", "0.15"), (TWO, "0.30", "0.35")):
            budget.start(name)
            budget.settle(budget.reserve(name, Decimal(usd)), Decimal(charged), measured=True)
            budget.observe(observation(name, charged=charged), {"answer": f"SECRET\u2028{name}"})
        with ledger.transaction():
            ledger.append("close", account=budget.account, run=budget.run, body={"reason": "end"})
    return place


def records(path):
    with opened(path) as ledger:
        return ledger.records()


def export(path, tmp_path, change=lambda rows: rows, *, private=False):
    rows = [json.loads(exported(record, private=private)) for record in records(path)]
    copy = tmp_path / "copy.jsonl"
    copy.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))
    return list(read_export(copy))


def command(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments], prog_name="studyminimal")
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.mark.parametrize("private", [True, False])
def test_a_whole_ledger_and_its_export_verify(path, tmp_path, private):
    whole = verify(records(path))
    copy = verify(export(path, tmp_path, private=private))

    assert (whole.problems, copy.problems) == ((), ())
    assert whole.head == copy.head
    assert (whole.private_absent, copy.private_absent) == (0, 0 if private else 2)


def test_an_export_holds_answers_only_where_asked(path, tmp_path):
    public = "".join(exported(record, private=False) for record in records(path))
    private = "".join(exported(record, private=True) for record in records(path))

    assert "SECRET" not in public
    assert "SECRET" in private


FIELDS = (
    *("seq", "kind", "account", "run", "attempt", "at", "committed_usd", "reserved_usd"),
    *("private_sha256", "previous_sha256", "sha256"),
)


@pytest.mark.parametrize("name", FIELDS)
def test_a_changed_field_of_any_record_is_found(path, tmp_path, name):
    for place in range(len(records(path))):

        def change(rows, place=place):
            old = rows[place][name]
            rows[place][name] = {
                "seq": 99,
                "committed_usd": "0.07",
                "reserved_usd": "0.07",
            }.get(name, f"{old or ''}x")
            return rows

        assert verify(export(path, tmp_path, change)).problems, place


def test_a_changed_body_and_a_changed_answer_are_found(path, tmp_path):
    for place in range(len(records(path))):

        def change(rows, place=place):
            rows[place]["body"]["more"] = 1
            return rows

        assert verify(export(path, tmp_path, change)).problems

    def other_answer(rows):
        next(row for row in rows if row["private"])["private"] = {"answer": "another"}
        return rows

    problems = verify(export(path, tmp_path, other_answer, private=True)).problems
    assert any("private content" in problem for problem in problems)


def test_a_removed_and_a_moved_record_are_found(path, tmp_path):
    count = len(records(path))
    for place in range(count - 1):
        assert verify(
            export(path, tmp_path, lambda rows, p=place: rows[:p] + rows[p + 1 :])
        ).problems
        moved = export(
            path,
            tmp_path,
            lambda rows, p=place: [*rows[:p], rows[p + 1], rows[p], *rows[p + 2 :]],
        )
        assert verify(moved).problems


def test_a_missing_end_is_found_by_whoever_noted_the_head(path, tmp_path, capsys):
    head = verify(records(path)).head
    copy = tmp_path / "copy.jsonl"
    lines = [exported(record, private=False) for record in records(path)]
    copy.write_text("\n".join(lines[:-1]))

    assert command(capsys, "ledger", "verify", copy)[0] == 0
    status, out, _ = command(capsys, "ledger", "verify", copy, "--head", head)
    assert status == 1
    assert "found no record with the noted head" in out
    assert command(capsys, "ledger", "verify", path, "--head", head)[0] == 0


def recomputed(rows):
    """Give every record the hash of its own content, as a forger with time would."""
    found, previous = [], "0" * 64
    for row in rows:
        from pytest_studyminimal.evidence.verification import _record

        record = _record({**row, "previous_sha256": previous, "sha256": ""})
        previous = record.expected_sha256()
        found.append({**row, "previous_sha256": record.previous_sha256, "sha256": previous})
    return found


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        ("settle", {"charged_usd": "0.01"}, "0.15 USD observed for one:plain:1, and 0.01 settled"),
        ("reserve", {"usd": "5"}, "committed above the cap of 1"),
        ("observation", {"charged_usd": "0.01"}, "found 0.01 USD observed for one:plain:1"),
        ("settle", {"reservation": 99}, "found a settlement of no open reservation"),
        ("approval", {"cap_usd": "0.1"}, "committed above the cap of 0.1"),
        ("settle", {"charged_usd": "-1"}, "found a negative charge"),
        ("settle", {"charged_usd": None}, "found a settle that cannot be read"),
    ],
)
def test_money_that_does_not_add_up_is_found_behind_a_forged_chain(
    path, tmp_path, kind, body, told
):
    def forge(rows):
        next(row for row in rows if row["kind"] == kind)["body"].update(body)
        return recomputed(rows)

    problems = verify(export(path, tmp_path, forge)).problems
    assert any(told in problem for problem in problems), problems


@pytest.mark.parametrize("rule", ["no_update", "no_delete"])
def test_a_file_without_its_rules_is_found(path, capsys, rule):
    with sqlite3.connect(path) as db:
        db.execute(f"DROP TRIGGER {rule}")
    db.close()

    status, out, _ = command(capsys, "ledger", "verify", path)

    assert status == 1
    assert f"found the ledger without its rule {rule}" in out


def test_a_record_changed_in_the_file_is_found(path, capsys):
    with sqlite3.connect(path) as db:
        db.execute("DROP TRIGGER no_update")
        db.execute("UPDATE record SET body = json_set(body, '$.usd', '0.1') WHERE kind = 'reserve'")
    db.close()

    status, out, _ = command(capsys, "ledger", "verify", path)

    assert status == 1
    assert "found content that its hash does not match" in out


@pytest.mark.parametrize(
    "text",
    ["not json", "[]", '{"seq": 1}', '{"seq": "1", "body": {}}', "\x00", '{"seq": 1, "body": 3}'],
)
def test_an_export_that_is_none_is_one_line(tmp_path, capsys, text):
    copy = tmp_path / "copy.jsonl"
    copy.write_text(text + "\n")

    with pytest.raises(LedgerError, match="line 1: found no record, required one"):
        list(read_export(copy))
    status, _, err = command(capsys, "ledger", "verify", copy)
    assert status == 4
    assert err.count("\n") == 1


def test_show_and_export_tell_the_runs_and_change_nothing(path, capsys):
    before = path.read_bytes()
    main(["ledger", "export", str(path)], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == len(records(path))
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert path.read_bytes() == before


@pytest.mark.parametrize("action", ["show", "verify", "export"])
def test_a_place_without_a_ledger_is_one_line(tmp_path, capsys, monkeypatch, action):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for arguments in ((tmp_path / "none",), ()):
        status, _, err = command(capsys, "ledger", action, *arguments)
        assert status == 4
        assert err.startswith("studyminimal: ")
        assert err.count("\n") == 1
