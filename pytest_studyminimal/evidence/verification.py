"""Whether a ledger, or an export of one, is whole: chain, append-only rule, arithmetic and caps.

The chain shows a changed, removed or reordered record anywhere but at the end; that records at the
end are missing is seen by whoever noted an earlier head.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import rfc8785

from pytest_studyminimal.evidence.records import Balance, Record, canonical
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from decimal import Decimal
    from pathlib import Path

GENESIS = "0" * 64
_MOST_FINDINGS = 50


@dataclass(frozen=True)
class Verified:
    """What was found: `problems` are public lines, `head` is the hash of the last record."""

    records: int
    head: str
    problems: tuple[str, ...]
    private_absent: int = 0


def verify(records: Iterable[Record]) -> Verified:
    """Check every record against the one before it and against the money of its account."""
    chain, books = _Chain(), _Books()
    problems: list[str] = []
    count = absent = 0
    for record in records:
        count += 1
        absent += record.private_sha256 is not None and record.private is None
        found = [*chain.check(record), *books.check(record)]
        problems += [f"record {record.seq}: {told}" for told in found]
        if len(problems) > _MOST_FINDINGS:
            problems = [*problems[:_MOST_FINDINGS], "and more"]
            break
    if not count:
        problems.append("found no record, required a first one")
    return Verified(count, chain.head, tuple(problems), absent)


@dataclass
class _Chain:
    head: str = GENESIS
    seq: int = 0

    def check(self, record: Record) -> Iterator[str]:
        if record.seq != self.seq + 1:
            yield f"found it after record {self.seq}, required record {self.seq + 1}"
        if record.previous_sha256 != self.head:
            yield "found another predecessor than the record before it"
        if record.sha256 != _expected(record):
            yield "found content that its hash does not match"
        if record.private is not None and _private_sha256(record.private) != record.private_sha256:
            yield "found private content that its hash does not match"
        self.head, self.seq = record.sha256, record.seq


def _expected(record: Record) -> str | None:
    try:
        return record.expected_sha256()
    except (ValueError, TypeError, RecursionError):
        return None


def _private_sha256(private: dict[str, Any]) -> str | None:
    try:
        return hashlib.sha256(rfc8785.dumps(canonical(private))).hexdigest()
    except (ValueError, TypeError, RecursionError):
        return None


@dataclass
class _Account:
    balance: Balance = field(default_factory=Balance)
    cap_usd: Decimal | None = None
    overshoot_usd: Decimal = money.ZERO


@dataclass
class _Books:
    """The money of every account, recomputed from the records alone."""

    accounts: dict[str, _Account] = field(default_factory=dict)
    approved: dict[str, Decimal] = field(default_factory=dict)
    open: dict[int, tuple[str, str, str, Decimal]] = field(default_factory=dict)
    started: set[tuple[str, str]] = field(default_factory=set)
    observed: set[tuple[str, str]] = field(default_factory=set)
    stopped: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    charged: dict[tuple[str, str], Decimal] = field(default_factory=dict)

    def check(self, record: Record) -> Iterator[str]:
        account = self.accounts.setdefault(record.account, _Account())
        try:
            rule = getattr(self, f"_{record.kind}", None)
            if rule is not None:
                yield from rule(record, account)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
            yield f"found a {record.kind} that cannot be read"
        if record.balance != account.balance:
            yield (
                f"found {_told(record.balance)} of account {record.account}, required"
                f" {_told(account.balance)}"
            )
            account.balance = record.balance

    def _approval(self, record: Record, account: _Account) -> Iterator[str]:
        cap = money.parse_exact(record.body["cap_usd"])
        if cap < account.balance.committed_usd:
            yield f"found a cap of {money.text(cap)} below what was committed"
        account.cap_usd = self.approved[record.run] = cap

    def _start(self, record: Record, _: _Account) -> Iterator[str]:
        key = (record.run, record.attempt)
        if key in self.started:
            yield f"found a second start of {record.attempt}"
        if record.run in self.stopped | self.closed:
            yield f"found a start of {record.attempt} after its run had stopped"
        self.started.add(key)

    def _reserve(self, record: Record, account: _Account) -> Iterator[str]:
        usd = money.parse_exact(record.body["usd"])
        if (record.run, record.attempt) not in self.started:
            yield f"found a reservation for {record.attempt} before its start"
        if record.run in self.stopped | self.closed:
            yield f"found a reservation for {record.attempt} after its run had stopped"
        self.open[record.seq] = (record.account, record.run, record.attempt, usd)
        held = account.balance
        account.balance = Balance(
            money.add(held.committed_usd, usd), money.add(held.reserved_usd, usd)
        )
        caps = [cap for cap in (account.cap_usd, self.approved.get(record.run)) if cap is not None]
        if not caps:
            yield "found a reservation without an approved cap"
        elif account.balance.committed_usd > min(caps):
            yield (
                f"found {money.text(account.balance.committed_usd)} USD committed above the cap of"
                f" {money.text(min(caps))}"
            )

    def _settle(self, record: Record, account: _Account) -> Iterator[str]:
        charged = money.parse_exact(record.body["charged_usd"])
        known = self.open.pop(record.body["reservation"], None)
        if known is None:
            yield "found a settlement of no open reservation"
            return
        if known[:3] != (record.account, record.run, record.attempt):
            yield f"found a settlement of {known[2]}'s reservation by {record.attempt}"
        if charged < 0:
            yield "found a negative charge"
        key = (record.run, record.attempt)
        self.charged[key] = money.add(self.charged.get(key, money.ZERO), charged)
        held = account.balance
        account.balance = Balance(
            money.add(money.subtract(held.committed_usd, known[3]), charged),
            money.subtract(held.reserved_usd, known[3]),
        )

    def _observation(self, record: Record, _: _Account) -> Iterator[str]:
        key = (record.run, record.attempt)
        if key in self.observed:
            yield f"found a second observation of {record.attempt}"
        self.observed.add(key)
        told = money.parse_exact(record.body["charged_usd"])
        charged = self.charged.get(key, money.ZERO)
        if told != charged:
            yield (
                f"found {money.text(told)} USD observed for {record.attempt}, and"
                f" {money.text(charged)} settled"
            )
        left = [one for one in self.open.values() if one[1:3] == key]
        if left:
            yield f"found {len(left)} open reservations of {record.attempt} after its observation"

    def _stop(self, record: Record, _: _Account) -> Iterator[str]:
        self.stopped.add(record.run)
        yield from ()

    def _close(self, record: Record, _: _Account) -> Iterator[str]:
        self.closed.add(record.run)
        yield from ()


def _told(balance: Balance) -> str:
    committed, reserved = money.text(balance.committed_usd), money.text(balance.reserved_usd)
    return f"{committed} USD committed and {reserved} reserved"


def exported(record: Record, *, private: bool) -> str:
    """Return a record as one line of JSON; answers and questions only where `private`."""
    document = {
        "seq": record.seq,
        "kind": record.kind,
        "account": record.account,
        "run": record.run,
        "attempt": record.attempt,
        "at": record.at,
        "committed_usd": money.text(record.balance.committed_usd),
        "reserved_usd": money.text(record.balance.reserved_usd),
        "body": record.body,
        "private_sha256": record.private_sha256,
        "previous_sha256": record.previous_sha256,
        "sha256": record.sha256,
    }
    if private:
        document["private"] = record.private
    return json.dumps(document)


def read_export(path: Path) -> Iterator[Record]:
    """Yield the records of an export. LedgerError names the line that is no record."""
    try:
        data = path.read_bytes()
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise LedgerError(f"{path}: found {why}, required a readable export") from None
    # At 0x0A and nowhere else: private texts may hold any other mark.
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield _record(json.loads(line.decode("utf-8")))
        except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            raise LedgerError(f"{path}: line {number}: found no record, required one") from None


def _record(row: dict[str, Any]) -> Record:
    if not isinstance(row["body"], dict) or type(row["seq"]) is not int:
        raise TypeError
    if "unlimited" in {row["committed_usd"], row["reserved_usd"]}:
        raise ValueError("a lifted cap is no amount")
    texts = ("kind", "account", "run", "attempt", "at", "previous_sha256", "sha256")
    if not all(isinstance(row[name], str) for name in texts):
        raise TypeError
    return Record(
        balance=Balance(
            money.parse_exact(row["committed_usd"]), money.parse_exact(row["reserved_usd"])
        ),
        seq=row["seq"],
        body=row["body"],
        private=row.get("private"),
        private_sha256=row["private_sha256"],
        **{name: row[name] for name in texts},
    )
