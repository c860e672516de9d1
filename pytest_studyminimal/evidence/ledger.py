"""The private, durable, append-only record of a study.

One table. Every record is chained to the one before it by SHA-256; private content enters the chain
as its own SHA-256, so that a copy without it still verifies. Each record carries its account's
committed total and open reservations *after* it, so that reserving reads one row however long the
ledger is. Nothing is ever updated or deleted; triggers refuse it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import sqlite3
from typing import TYPE_CHECKING, Any, Self

import rfc8785

from pytest_studyminimal.evidence.files import connect, private_file, turn
from pytest_studyminimal.evidence.records import COLUMNS, Balance, Record, canonical, record_of
from pytest_studyminimal.evidence.uninterrupted import interrupts_wait
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

FORMAT = 1
_GENESIS = "0" * 64
_SCHEMA = """
CREATE TABLE record (
    seq INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    account TEXT NOT NULL,
    run TEXT NOT NULL,
    attempt TEXT NOT NULL,
    at TEXT NOT NULL,
    committed_usd TEXT NOT NULL,
    reserved_usd TEXT NOT NULL,
    body TEXT NOT NULL,
    private TEXT,
    private_sha256 TEXT,
    previous_sha256 TEXT NOT NULL,
    sha256 TEXT NOT NULL UNIQUE
);
CREATE UNIQUE INDEX an_attempt_starts_once ON record (run, attempt) WHERE kind = 'start';
CREATE UNIQUE INDEX an_attempt_is_observed_once ON record (run, attempt) WHERE kind = 'observation';
CREATE UNIQUE INDEX a_run_opens_once ON record (run) WHERE kind = 'run';
CREATE UNIQUE INDEX a_reservation_settles_once
    ON record (json_extract(body, '$.reservation')) WHERE kind = 'settle';
CREATE INDEX balance ON record (account, seq);
CREATE INDEX by_run ON record (run, kind, seq);
CREATE INDEX by_attempt ON record (run, attempt, seq);
CREATE INDEX by_kind ON record (kind, account, seq);
CREATE TRIGGER no_update BEFORE UPDATE ON record
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON record
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""

_RULES = (
    *("no_update", "no_delete", "an_attempt_starts_once", "an_attempt_is_observed_once"),
    *("a_run_opens_once", "a_reservation_settles_once"),
)


class Ledger:
    """An open ledger of one study; a context manager, safe for several processes, not for threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection
        self._in_transaction = False

    @classmethod
    def open(cls, path: Path, study: str) -> Ledger:
        """Open or create the ledger of `study` at `path`, mode 0600.

        Raises LedgerError for a place that others can change, a disk that cannot be written, a file
        that is no ledger, or the ledger of another study.
        """
        private_file(path)
        connection: sqlite3.Connection | None = None
        try:
            # SQLite does not wait where two connections change the journal mode at once.
            with turn(path):
                connection = connect(path)
            ledger = cls(path, connection)
            ledger._prepare(study)
        except (sqlite3.Error, LedgerError) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, LedgerError):
                raise
            raise _unwritable(path, error) from None
        return ledger

    @classmethod
    def read(cls, path: Path, *, damaged: bool = False) -> Ledger:
        """Open an existing ledger of any study, only to read it; no record is created or changed.

        Raises LedgerError where there is no file, it is no ledger, or, unless `damaged`, its last
        record is not what its hash says.
        """
        try:
            if not path.is_file():
                raise LedgerError(f"{path}: found no file, required a ledger")
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        except (OSError, sqlite3.Error):
            raise LedgerError(f"{path}: found a file that cannot be read, required one") from None
        ledger = cls(path, connection)
        try:
            if not damaged:
                ledger._refuse_other_format(ledger._first())
                ledger._refuse_damaged()
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise LedgerError(f"{path}: found another file, required a ledger") from None
            raise
        return ledger

    @property
    def directory(self) -> Path:
        """Where the ledger, its run locks and its private streams lie."""
        return self.path.parent

    def _prepare(self, study: str) -> None:
        with self.transaction():
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'record'").fetchone():
                # executescript would commit first: run the statements inside the transaction.
                for statement in _statements(_SCHEMA):
                    self._db.execute(statement)
                self.append(
                    "ledger", account=study, run="", body={"format": FORMAT, "study": study}
                )
            first = self._first()
            self._refuse_damaged()
        self._refuse_other_format(first)
        if first.body["study"] != study:
            raise LedgerError(
                f"{self.path}: found the ledger of study {first.body['study']!r},"
                f" required the one of {study!r} (--study-ledger)"
            )

    def _refuse_other_format(self, first: Record) -> None:
        if first.kind != "ledger" or first.body.get("format") != FORMAT:
            raise LedgerError(f"{self.path}: found another format, required ledger format {FORMAT}")

    def _refuse_damaged(self) -> None:
        query = f"SELECT {COLUMNS} FROM record ORDER BY seq DESC LIMIT 1"  # noqa: S608
        for last in self._read(query):
            if last.sha256 != last.expected_sha256():
                raise LedgerError(f"{self.path}: found a damaged record, required a whole ledger")

    def _first(self) -> Record:
        for record in self.records(limit=1):
            return record
        raise LedgerError(
            f"{self.path}: found a ledger without its first record, required a whole one"
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the only right to write; what was appended inside is on disk when this returns.

        Raises LedgerError where it cannot be written; then nothing of it was.
        """
        with interrupts_wait(), turn(self.path):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._in_transaction = True
                yield
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                raise _unwritable(self.path, error) from None
            finally:
                self._in_transaction = False
                if self._db.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")

    def append(
        self,
        kind: str,
        *,
        account: str,
        run: str,
        body: dict[str, Any],
        attempt: str = "",
        private: dict[str, Any] | None = None,
        balance: Balance | None = None,
    ) -> int:
        """Append one record inside a transaction and return its number; `balance` defaults to the last."""
        assert self._in_transaction, "append() belongs inside transaction()"
        last = self._db.execute(
            "SELECT seq, sha256 FROM record ORDER BY seq DESC LIMIT 1"
        ).fetchone()
        secret = None if private is None else rfc8785.dumps(canonical(private)).decode()
        record = Record(
            seq=(last[0] if last else 0) + 1,
            kind=kind,
            account=account,
            run=run,
            attempt=attempt,
            at=dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
            balance=self.balance(account) if balance is None else balance,
            body=canonical(body),
            private=None,
            private_sha256=None if secret is None else hashlib.sha256(secret.encode()).hexdigest(),
            previous_sha256=last[1] if last else _GENESIS,
            sha256="",
        )
        self._insert(record, secret)
        return record.seq

    def _insert(self, record: Record, secret: str | None) -> None:
        self._db.execute(
            f"INSERT INTO record ({COLUMNS}) VALUES ({', '.join('?' * 13)})",  # noqa: S608
            (
                record.seq,
                record.kind,
                record.account,
                record.run,
                record.attempt,
                record.at,
                money.text(record.balance.committed_usd),
                money.text(record.balance.reserved_usd),
                rfc8785.dumps(record.body).decode(),
                secret,
                record.private_sha256,
                record.previous_sha256,
                record.expected_sha256(),
            ),
        )

    def missing_rules(self) -> tuple[str, ...]:
        """Return which of the database's own rules are gone: append-only, once, settled once."""
        found = {name for (name,) in self._rows("SELECT name FROM sqlite_master")}
        return tuple(
            f"found the ledger without its rule {name}" for name in _RULES if name not in found
        )

    def balance(self, account: str) -> Balance:
        """Return the dollars of `account` after its last record; constant however long the ledger is."""
        rows = self._rows(
            "SELECT committed_usd, reserved_usd FROM record WHERE account = ? ORDER BY seq DESC LIMIT 1",
            (account,),
        )
        return Balance(*map(money.parse_exact, rows[0])) if rows else Balance()

    def records(
        self,
        *,
        run: str | None = None,
        kind: str | None = None,
        attempt: str | None = None,
        limit: int = -1,
    ) -> list[Record]:
        """Return records in order, of one run, kind or attempt where given, private parts included."""
        where, values = [], []
        for column, value in (("run", run), ("kind", kind), ("attempt", attempt)):
            if value is not None:
                where.append(f"{column} = ?")
                values.append(value)
        condition = f"WHERE {' AND '.join(where)}" if where else ""
        query = f"SELECT {COLUMNS} FROM record {condition} ORDER BY seq LIMIT ?"  # noqa: S608
        return self._read(query, (*values, limit))

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[Record]:
        rows = self._rows(query, values)
        try:
            return [record_of(row) for row in rows]
        except (ArithmeticError, TypeError, ValueError):
            raise LedgerError(
                f"{self.path}: found a damaged record, required a whole ledger"
            ) from None

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise LedgerError(f"{self.path}: found {error}, required a readable ledger") from None

    def record(self, seq: int) -> Record:
        """Return one record by its number; KeyError where there is none."""
        query = f"SELECT {COLUMNS} FROM record WHERE seq = ?"  # noqa: S608
        for record in self._read(query, (seq,)):
            return record
        raise KeyError(seq)

    def open_runs(self) -> list[Record]:
        """Return the opening records of runs that were not closed, oldest first."""
        closed = "SELECT run FROM record WHERE kind = 'close'"
        query = (
            f"SELECT {COLUMNS} FROM record"  # noqa: S608
            f" WHERE kind = 'run' AND run NOT IN ({closed}) ORDER BY seq"
        )
        return self._read(query)

    def last(self, kind: str, *, account: str) -> list[Record]:
        """Return the newest record of that kind in an account, or nothing."""
        query = (
            f"SELECT {COLUMNS} FROM record WHERE kind = ? AND account = ? ORDER BY seq DESC LIMIT 1"  # noqa: S608
        )
        return self._read(query, (kind, account))

    def has(self, kind: str, *, run: str, attempt: str | None = None) -> bool:
        """Whether the run (or one attempt of it) has a record of that kind."""
        query = "SELECT 1 FROM record WHERE kind = ? AND run = ?"
        values: tuple[str, ...] = (kind, run)
        if attempt is not None:
            query, values = f"{query} AND attempt = ?", (*values, attempt)
        return bool(self._rows(f"{query} LIMIT 1", values))

    def close(self) -> None:
        """Close the file; what was appended stays."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _unwritable(path: Path, error: sqlite3.Error) -> LedgerError:
    return LedgerError(f"{path}: found {error}, required a ledger that can be written")
