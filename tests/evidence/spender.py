"""Another process at the same ledger: `spender.py ROLE LEDGER …`; waits for a line after "ready"."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from decimal import Decimal
from pathlib import Path

from ledgers import RUN, STUDY, begin, observation, opened

from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.files import turn
from pytest_studyminimal.evidence.sessions import alive
from pytest_studyminimal.protocol.errors import BudgetRefusedError, LedgerError, StudyError


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def ready():
    say("ready")
    sys.stdin.readline()


def spend(path, first, last):
    """Reserve 0.10 for each attempt and settle it at 0.10; print who was admitted."""
    with opened(path) as ledger:
        budget = Budget(ledger, STUDY, RUN)
        ready()
        for number in range(int(first), int(last)):
            attempt = f"one:plain:{number}"
            with contextlib.suppress(BudgetRefusedError):
                budget.start(attempt)
                reservation = budget.reserve(attempt, Decimal("0.10"))
                say(attempt)
                budget.settle(reservation, Decimal("0.10"), measured=True)


def append(path, name, count):
    """Append many reservations in the account of that name, from a ledger that may not exist yet."""
    ready()
    with opened(path) as ledger:
        for number in range(int(count)):
            with ledger.transaction():
                ledger.append("note", account=STUDY, run=name, body={"number": number})
            if number % 2:
                with ledger.transaction():
                    ledger.append("note", account=name, run=name, body={}, private={"p": name})


def come_and_go(path, name, count):
    """Open the ledger, append once and close it, again and again."""
    ready()
    for number in range(int(count)):
        with opened(path) as ledger, ledger.transaction():
            ledger.append("note", account=STUDY, run=name, body={"number": number})


def hold(path):
    """Hold the right to write until a line comes."""
    with turn(path):
        ready()


def lock(path, run):
    """Keep a run alive until a line comes."""
    with opened(path) as ledger, alive(ledger, run):
        ready()


def attempt(path, run):
    """Open a run, start an attempt, reserve, and be killed in the middle of it."""
    with opened(path) as ledger, alive(ledger, run):
        budget = begin(ledger, ("one:plain:1", "one:docs:1", "two:plain:1"), run=run)
        budget.start("one:plain:1")
        first = budget.reserve("one:plain:1", Decimal("0.10"))
        budget.settle(first, Decimal("0.0123"), measured=True)
        budget.observe(observation("one:plain:1", charged="0.0123"), {})
        budget.start("one:docs:1")
        second = budget.reserve("one:docs:1", Decimal("0.07"))
        budget.settle(second, Decimal("0.02"), measured=True)
        budget.reserve("one:docs:1", Decimal("0.10"))
        say("ready")
        time.sleep(60)


def wait_stopped(path):
    """Say what a second process sees of a stopped run."""
    with opened(path) as ledger:
        budget = Budget(ledger, STUDY, RUN)
        ready()
        for act in (
            lambda: budget.admit("one:plain:2", Decimal("0.01")),
            lambda: budget.start("one:plain:2"),
            lambda: budget.reserve("one:plain:2", Decimal("0.01")),
        ):
            try:
                act()
            except StudyError as error:
                say(f"{type(error).__name__}: {error}")


def short_of_space(path):
    """Reserve once, then again where the file may not grow; say what came of it."""
    with opened(path) as ledger:
        budget = Budget(ledger, STUDY, RUN)
        budget.reserve("one:plain:1", Decimal("0.10"))
        wal = Path(f"{path}-wal").stat().st_size
        ready()
        resource.setrlimit(resource.RLIMIT_FSIZE, (wal + 100, resource.RLIM_INFINITY))
        for _ in range(2):
            try:
                budget.reserve("one:plain:1", Decimal("0.20"))
                say("reserved")
            except LedgerError as error:
                say(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        budget.reserve("one:plain:1", Decimal("0.40"))


def full_disk(path):
    """As above on a disk that is full: the folder holds a file `filler` while it is."""
    folder = Path(path).parent
    with opened(path) as ledger:
        budget = begin(ledger)
        budget.reserve("one:plain:1", Decimal("0.10"))
        fill(folder / "filler")
        for _ in range(2):
            try:
                # The log may still have a page to spare; a disk that is full refuses in the end.
                while True:
                    budget.reserve("one:plain:1", Decimal("0.0001"))
            except LedgerError as error:
                say(error)
        try:
            opened(folder / "other" / "ledger.sqlite3")
        except LedgerError as error:
            say(error)
        (folder / "filler").unlink()
        budget.reserve("one:plain:1", Decimal("0.40"))


def fill(path):
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 512)


def open_as_nobody(*paths):
    """Say what an ordinary user gets at each place."""
    # Canonical JSON needs this codec, and what root can import an ordinary user may not.
    "".encode("utf-16be")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    for path in paths:
        try:
            opened(Path(path)).close()
            say("opened")
        except LedgerError as error:
            say(error)


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    arguments[0] = Path(arguments[0])
    globals()[role](*arguments)
