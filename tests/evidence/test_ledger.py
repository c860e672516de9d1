"""The ledger: a private file that only grows, whatever processes, disks and people do."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import tempfile
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import GENESIS, RUN, STUDY, begin, child, observation, opened, together, whole

from pytest_studyminimal.evidence import ledger as ledger_module
from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.files import turn
from pytest_studyminimal.evidence.records import canonical
from pytest_studyminimal.protocol.errors import LedgerError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "ledger.sqlite3"


def note(ledger, **parts):
    with ledger.transaction():
        return ledger.append("note", **{"account": STUDY, "run": RUN, "body": {}, **parts})


def raw(path, *statements):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def refused(path, study=STUDY):
    with pytest.raises(LedgerError) as error:
        opened(path, study)
    message = str(error.value)
    assert "found " in message
    assert ", required " in message
    assert all(char.isprintable() for char in message)
    return message


def test_a_new_ledger_is_private_with_all_its_side_files(path):
    before = os.umask(0)
    try:
        with opened(path) as ledger:
            note(ledger)
            modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir()}
    finally:
        os.umask(before)

    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert len(modes) == 4
    assert set(modes.values()) == {0o600}


def test_a_ledger_that_others_could_read_is_made_private_again(path):
    opened(path).close()
    path.chmod(0o644)
    opened(path).close()

    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_appended_is_there_after_opening_again(path):
    with opened(path) as ledger:
        seq = note(ledger, attempt="one:plain:1", body={"a": [1, None, True]}, private={"b": "c"})
    with opened(path) as ledger:
        record = ledger.record(seq)
        assert whole(ledger) == ledger.records()

    assert (record.kind, record.account, record.run, record.attempt) == (
        "note",
        STUDY,
        RUN,
        "one:plain:1",
    )
    assert (record.body, record.private) == ({"a": [1, None, True]}, {"b": "c"})


def test_the_first_record_names_the_study_and_starts_the_chain(path):
    with opened(path) as ledger:
        first = ledger.records()[0]

    assert (first.kind, first.body) == ("ledger", {"format": 1, "study": STUDY})
    assert first.previous_sha256 == GENESIS


def test_a_ledger_of_another_study_is_refused(path):
    opened(path).close()

    assert "found the ledger of study 'little-study', required the one of 'other'" in refused(
        path, "other"
    )


def test_a_ledger_of_another_format_is_refused(path, monkeypatch):
    monkeypatch.setattr(ledger_module, "FORMAT", 2)
    opened(path).close()
    monkeypatch.undo()

    assert refused(path) == f"{path}: found another format, required ledger format 1"


@pytest.mark.parametrize("link", ["file", "lock"])
def test_a_symbolic_link_is_refused_and_its_target_left_alone(path, tmp_path, link):
    path.parent.mkdir(mode=0o700)
    target = tmp_path / "target"
    target.write_text("precious")
    target.chmod(0o644)
    (path if link == "file" else Path(f"{path}.lock")).symlink_to(target)

    refused(path)

    assert target.read_text() == "precious"
    assert target.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_can_write_is_refused(path, mode):
    path.parent.mkdir()
    path.parent.chmod(mode)

    assert f"found a directory of mode {mode:04o} that others can write, required" in refused(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused_and_left_alone(path):
    opened(path).close()
    path.chmod(0o644)
    os.chown(path, 65534, 65534)

    assert "found a file of another user, required one of your own" in refused(path)
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_refused(path, make):
    path.parent.mkdir(mode=0o700)
    make(path)

    refused(path)


@pytest.mark.parametrize(
    "garbage", [b"not a database", b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 4096]
)
def test_what_is_no_database_is_refused_and_left_as_it_was(path, garbage):
    path.parent.mkdir(mode=0o700)
    path.write_bytes(garbage)

    assert str(path) in refused(path)
    assert path.read_bytes() == garbage


def test_the_database_of_another_program_is_refused_and_left_as_it_was(path):
    path.parent.mkdir(mode=0o700)
    raw(path, "CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()

    assert "found another program's database, required a ledger" in refused(path)
    assert path.read_bytes() == before


def test_a_table_of_the_same_name_is_no_ledger(path):
    path.parent.mkdir(mode=0o700)
    raw(path, "CREATE TABLE record (url TEXT)")

    refused(path)


def test_a_ledger_whose_first_record_is_lost_is_refused(path):
    opened(path).close()
    raw(path, "DROP TRIGGER no_delete", "DELETE FROM record")

    assert "found a ledger without its first record" in refused(path)


def test_a_truncated_ledger_is_never_written_and_never_raises_another_error(path):
    with opened(path) as ledger:
        begin(ledger)
        for number in range(60):
            note(ledger, body={"number": number, "padding": "x" * 300})
    content = path.read_bytes()

    for kept in (*range(512, len(content), 8192), *range(len(content) - 4096, len(content), 1024)):
        path.write_bytes(content[:kept])
        assert "found " in refused(path)


def test_a_page_of_zeros_is_never_read_as_records_and_raises_no_other_error(path):
    with opened(path) as ledger:
        begin(ledger)
        for number in range(60):
            note(ledger, body={"number": number, "padding": "x" * 300})
    content = path.read_bytes()

    uses = (
        lambda ledger: Budget(ledger, STUDY, RUN).admit("one:plain:1", Decimal("0.1")),
        lambda ledger: Budget(ledger, STUDY, RUN).start("one:plain:1"),
        lambda ledger: ledger.record(50),
        lambda ledger: ledger.last("approval", account=STUDY),
        lambda ledger: ledger.has("close", run=RUN),
        lambda ledger: ledger.open_runs(),
        whole,
    )
    for start in range(4096, len(content), 4096):
        path.write_bytes(content[:start] + bytes(4096) + content[start + 4096 :])
        with contextlib.suppress(LedgerError), opened(path) as ledger:
            for use in uses:
                with contextlib.suppress(LedgerError):
                    use(ledger)


def test_no_one_else_can_write_into_a_ledger_of_ones_own(tmp_path):
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        top.chmod(0o755)
        closed, unreadable, owned = top / "closed", top / "unreadable", top / "owned"
        for folder, mode in ((closed, 0o755), (unreadable, 0o000), (owned, 0o700)):
            folder.mkdir()
            folder.chmod(mode)
        if os.geteuid() == 0:
            os.chown(owned, 65534, 65534)
        else:
            closed.chmod(0o555)
        names = [folder / "ledger.sqlite3" for folder in (closed, unreadable, owned)]
        one = child("open_as_nobody", *names, names[0].parent / "new" / "ledger.sqlite3")
        out, err = one.communicate(timeout=30)
        unreadable.chmod(0o700)

    said = out.splitlines()
    assert err == ""
    assert said[2] == "opened"
    for line, name in zip(said[:2], names[:2], strict=True):
        assert line in {
            f"{name}: found permission denied, required a place for the ledger that can be written",
            f"{name.parent}: found a directory of another user, required one of your own",
        }
    assert "found permission denied" in said[3]


def test_a_ledger_in_a_folder_that_can_no_longer_be_written_is_refused():
    with tempfile.TemporaryDirectory() as place:
        top = Path(place)
        path = top / "ledger.sqlite3"
        opened(path).close()
        top.chmod(0o555)
        if os.geteuid() == 0:
            for one in (top, *top.iterdir()):
                os.chown(one, 65534, 65534)
            Path(f"{path}.lock").unlink()
        out, err = child("open_as_nobody", path).communicate(timeout=30)
        top.chmod(0o700)

    assert err == ""
    assert "found " in out
    assert "opened" not in out


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE record SET committed_usd = '0' WHERE seq = 1",
        "UPDATE record SET body = '{}'",
        "DELETE FROM record WHERE seq = 1",
        "DELETE FROM record",
    ],
)
def test_no_record_can_be_changed_or_deleted_even_with_sqlite_itself(path, statement):
    with opened(path) as ledger:
        note(ledger)
        before = whole(ledger)
        with pytest.raises(sqlite3.IntegrityError, match="the ledger is append-only"):
            raw(path, statement)

        assert whole(ledger) == before


def test_a_change_that_gets_past_the_triggers_breaks_the_chain(path):
    with opened(path) as ledger:
        note(ledger, body={"usd": "1"})
        note(ledger)
    raw(path, "DROP TRIGGER no_update", 'UPDATE record SET body = \'{"usd":"2"}\' WHERE seq = 2')

    with opened(path) as ledger:
        record = ledger.record(2)
        assert record.sha256 != record.expected_sha256()


def test_a_ledger_whose_last_record_was_changed_is_refused(path):
    with opened(path) as ledger:
        note(ledger)
    raw(path, "DROP TRIGGER no_update", "UPDATE record SET committed_usd = '-5' WHERE seq = 2")

    assert refused(path) == f"{path}: found a damaged record, required a whole ledger"


@pytest.mark.parametrize(
    "column",
    ["kind", "account", "run", "attempt", "at", "committed_usd", "reserved_usd", "private_sha256"],
)
def test_every_column_is_in_the_chain(path, column):
    with opened(path) as ledger:
        note(ledger, private={"a": 1})
        note(ledger)
    raw(path, "DROP TRIGGER no_update", f"UPDATE record SET {column} = '7' WHERE seq = 2")

    with opened(path) as ledger:
        record = ledger.record(2)
        assert record.sha256 != record.expected_sha256()


def test_a_copy_without_private_content_still_verifies(path):
    with opened(path) as ledger:
        note(ledger, private={"answer": "secret"})
        note(ledger, private={"answer": "another"})
        kept = ledger.record(2)
    raw(path, "DROP TRIGGER no_update", "UPDATE record SET private = NULL")

    with opened(path) as ledger:
        records = whole(ledger)
    assert [record.private for record in records] == [None] * 3
    assert records[1].private_sha256 == kept.private_sha256
    assert kept.private == {"answer": "secret"}
    assert "secret" not in json.dumps([record.body for record in records])


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("\ud800 lone", "? lone"),
        ("a\0b", "a\0b"),
        ("\u2028\x1b😀", "\u2028\x1b😀"),
        (2**53 - 1, 2**53 - 1),
        (2**53, str(2**53)),
        (-(10**40), str(-(10**40))),
        (1.5, 1.5),
        (300.0, 300),
        (1e-300, 1e-300),
        (1e16, "1e+16"),
        (1e300, "1e+300"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (True, True),
        (("a", ["b"]), ["a", ["b"]]),
        ({1: {"\udc00": None}}, {"1": {"?": None}}),
    ],
)
def test_any_value_is_kept_in_a_form_that_verifies(path, value, kept):
    with opened(path) as ledger:
        seq = note(ledger, body={"value": value}, private={"value": value})
        record = ledger.record(seq)
        whole(ledger)

    assert record.body == record.private == {"value": kept}


def test_an_integer_that_has_no_decimal_text_is_kept_in_hexadecimal():
    assert canonical([10**5000]) == [hex(10**5000)]


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(st.characters(exclude_categories=())),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=10,
    )
)
def test_canonical_values_survive_being_written_and_read(value):
    from rfc8785 import dumps

    written = dumps(canonical(value))

    assert dumps(json.loads(written)) == written


@pytest.mark.parametrize("kind", ["start", "observation", "run"])
def test_what_may_happen_once_is_refused_a_second_time(path, kind):
    with opened(path) as ledger:
        parts = {"account": STUDY, "run": RUN, "attempt": "one:plain:1", "body": {}}
        with ledger.transaction():
            ledger.append(kind, **parts)
        with pytest.raises(LedgerError, match="UNIQUE"), ledger.transaction():
            ledger.append(kind, **parts)

        assert len(whole(ledger)) == 2


def append_and(ledger, then):
    with ledger.transaction():
        ledger.append("note", account=STUDY, run=RUN, body={})
        then()


def test_a_transaction_is_all_or_nothing(path):
    with opened(path) as ledger:
        with pytest.raises(ZeroDivisionError):
            append_and(ledger, lambda: 1 / 0)
        assert len(ledger.records()) == 1
        note(ledger)

        assert [record.seq for record in whole(ledger)] == [1, 2]


def test_an_interrupt_inside_a_transaction_waits_until_it_is_whole(path):
    with opened(path) as ledger, opened(path) as other:
        with pytest.raises(KeyboardInterrupt):
            append_and(ledger, lambda: signal.raise_signal(signal.SIGINT))
        note(other, body={"after": True})

        assert [record.body for record in whole(ledger)[1:]] == [{}, {"after": True}]


def test_appending_outside_a_transaction_is_a_mistake_of_ours(path):
    with opened(path) as ledger, pytest.raises(AssertionError, match="inside transaction"):
        ledger.append("note", account=STUDY, run=RUN, body={})


def test_reads_find_what_they_are_asked_for(path):
    with opened(path) as ledger:
        budget = begin(ledger, ("one:plain:1", "two:plain:1"))
        budget.start("one:plain:1")
        budget.observe(observation("one:plain:1"), {"answer": "a"})
        begin(ledger, run="run-2")

        assert ledger.has("start", run=RUN)
        assert ledger.has("start", run=RUN, attempt="one:plain:1")
        assert not ledger.has("start", run=RUN, attempt="two:plain:1")
        assert not ledger.has("start", run="run-2")
        assert [row.run for row in ledger.open_runs()] == [RUN, "run-2"]
        assert [one.kind for one in ledger.records(run=RUN, attempt="one:plain:1")] == [
            "start",
            "observation",
        ]
        assert len(ledger.records(kind="run", limit=1)) == 1
        assert ledger.last("approval", account=STUDY)[0].run == "run-2"
        assert ledger.last("approval", account="other") == []
        with pytest.raises(KeyError):
            ledger.record(99)


@pytest.mark.parametrize("processes", [2, 8])
def test_processes_at_the_same_time_keep_one_unbroken_chain(path, processes):
    together(*(child("append", path, f"run-{number}", 20) for number in range(processes)))

    with opened(path) as ledger:
        records = whole(ledger)
    assert len(records) == 1 + processes * 30
    for number in range(processes):
        mine = [record for record in records if record.run == f"run-{number}"]
        assert [one.body["number"] for one in mine if one.body] == list(range(20))
    assert sorted(record.at for record in records) == [record.at for record in records]


def test_processes_that_open_and_close_a_new_ledger_at_the_same_time_all_succeed(path):
    together(*(child("come_and_go", path, f"run-{number}", 15) for number in range(4)))

    with opened(path) as ledger:
        assert len(whole(ledger)) == 1 + 4 * 15


def test_a_ledger_that_another_process_holds_is_refused_in_time_and_the_holder_named(path):
    opened(path).close()
    holder = child("hold", path)
    assert holder.stdout.readline() == "ready\n"
    begun = time.monotonic()

    with pytest.raises(LedgerError) as error, turn(path, wait_s=0.2):
        pytest.fail("two processes hold the ledger")

    assert 0.2 <= time.monotonic() - begun < 5
    assert str(error.value) == (
        f"{path}: found it held by process {holder.pid} for 0.2 s, required a free ledger"
    )
    holder.communicate("go\n", timeout=30)
    with turn(path, wait_s=5):
        pass


def test_a_killed_holder_holds_nothing(path):
    opened(path).close()
    holder = child("hold", path)
    assert holder.stdout.readline() == "ready\n"
    holder.kill()
    holder.communicate(timeout=30)

    with opened(path) as ledger:
        note(ledger)


def test_a_reservation_that_cannot_be_written_is_an_error_and_nothing_was_appended(path):
    with opened(path) as ledger:
        begin(ledger)
    ((first, second),) = together(child("short_of_space", path))

    assert first.startswith(f"{path}: found ")
    assert second.startswith(f"{path}: found ")
    with opened(path) as ledger:
        assert [one.body["usd"] for one in whole(ledger) if one.kind == "reserve"] == ["0.1", "0.4"]
        assert ledger.balance(STUDY).reserved_usd == Decimal("0.50")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=384k,mode=0700", "none", str(folder)]
    try:
        made = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        made = False
    if not made:
        pytest.skip("a small file system can only be mounted by root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_an_error_and_nothing_was_appended(small_disk):
    path = small_disk / "ledger.sqlite3"
    out, err = child("full_disk", path).communicate(timeout=60)

    said = out.splitlines()
    assert err == ""
    assert len(said) == 3
    assert all("found " in line and ", required " in line for line in said)
    with opened(path) as ledger:
        reserved = [Decimal(one.body["usd"]) for one in whole(ledger) if one.kind == "reserve"]
    assert (reserved[0], reserved[-1]) == (Decimal("0.1"), Decimal("0.4"))


def test_a_place_that_cannot_be_one_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (
        tmp_path / "file" / "ledger.sqlite3",
        tmp_path / ("x" * 300) / "ledger.sqlite3",
        tmp_path / "state" / ("x" * 300),
    ):
        refused(path)


def test_balances_are_kept_per_account(path):
    with opened(path) as ledger:
        budgets = [begin(ledger, run=f"run-{name}", account=name) for name in ("a", "b")]
        for budget, usd in itertools.product(budgets, ("0.1", "0.2")):
            budget.reserve("one:plain:1", Decimal(usd))
        whole(ledger)

        assert {ledger.balance(name).committed_usd for name in ("a", "b")} == {Decimal("0.3")}
        assert ledger.balance("c").committed_usd == 0
