"""The ledger's file: private, durable, and one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import time
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_WAIT_S = 30.0
_SQLITE = b"SQLite format 3\0"


def connect(path: Path) -> sqlite3.Connection:
    """Open the database so that a commit is on disk when it returns."""
    connection = sqlite3.connect(
        path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
    )
    try:
        _refuse_unusable(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # macOS: fsync alone does not reach the platter.
        connection.execute("PRAGMA fullfsync = ON")
    except (sqlite3.Error, LedgerError):
        connection.close()
        raise
    return connection


def _refuse_unusable(connection: sqlite3.Connection, path: Path) -> None:
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if names and "record" not in names:
        raise LedgerError(f"{path}: found another program's database, required a ledger")
    # SQLite reads the missing end of a last page as zeros and takes it for empty columns.
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    if path.stat().st_size % page_bytes:
        raise LedgerError(f"{path}: found a file that was cut short, required a whole ledger")


def private_file(path: Path) -> None:
    """Create the ledger's file, mode 0600, in a directory of mode 0700 where it is ours to make.

    Raises LedgerError for a place that others can change and one that cannot be written.
    """
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_shared(directory)
        # SQLite gives its side files the mode of the database, so that must be right from the start.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(path, flags, 0o600)
        try:
            _refuse_foreign(os.fstat(handle), path)
            if os.pread(handle, len(_SQLITE), 0) not in {b"", _SQLITE}:
                # Before its mode is changed or a lock file is put beside it: it may be anything.
                raise LedgerError(f"{path}: found another file, required a ledger or a new name")
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        why = (error.strerror or "an error").lower()
        raise LedgerError(
            f"{path}: found {why}, required a place for the ledger that can be written"
        ) from None


def _refuse_foreign(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{path}: found no regular file, required a ledger")
    if status.st_uid != os.geteuid():
        raise LedgerError(f"{path}: found a file of another user, required one of your own")


def _refuse_shared(directory: Path) -> None:
    status = directory.stat()
    # Also where it is sticky: others could put a file of theirs in the place of one still to come.
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise LedgerError(
            f"{directory}: found a directory of mode {mode:04o} that others can write,"
            " required one of your own, such as a new one in it (0700)"
        )
    if status.st_uid != os.geteuid():
        raise LedgerError(
            f"{directory}: found a directory of another user, required one of your own"
        )


@contextlib.contextmanager
def turn(path: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Wait for the only right to write, at most `wait_s` seconds.

    The lock file keeps waits short under many writers. Raises LedgerError naming the holder where
    it does not become free.
    """
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LedgerError(
            f"{path}.lock: found {error.strerror}, required a writable file"
        ) from None
    try:
        _wait_for(lock, path, wait_s)
        yield
    finally:
        os.close(lock)


def _wait_for(lock: int, path: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    pause_s = 0.0005
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = (
                    os.pread(lock, 100, 0).decode("ascii", "replace").strip() or "another process"
                )
                raise LedgerError(
                    f"{path}: found it held by {holder} for {wait_s:g} s, required a free ledger"
                ) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.01)
        else:
            with contextlib.suppress(OSError):  # a full disk must not be the lock's finding
                os.pwrite(lock, f"process {os.getpid()}".ljust(30).encode(), 0)
            return


def append_privately(path: Path, text: str) -> None:
    """Append `text` to a file of mode 0600; OSError where that cannot be done."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
