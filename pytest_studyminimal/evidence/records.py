"""What a row of the ledger holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import rfc8785

from pytest_studyminimal.protocol import money

if TYPE_CHECKING:
    from decimal import Decimal

_LARGEST = 2**53 - 1
COLUMNS = (
    "seq, kind, account, run, attempt, at, committed_usd, reserved_usd, body, private,"
    " private_sha256, previous_sha256, sha256"
)


@dataclass(frozen=True)
class Balance:
    """An account's dollars: `committed` is settled charges plus open reservations."""

    committed_usd: Decimal = money.ZERO
    reserved_usd: Decimal = money.ZERO

    @property
    def spent_usd(self) -> Decimal:
        """Settled charges alone."""
        return money.subtract(self.committed_usd, self.reserved_usd)


@dataclass(frozen=True)
class Record:
    """One row. `private` is None where there is none, or where a copy left it out."""

    seq: int
    kind: str
    account: str
    run: str
    attempt: str
    at: str
    balance: Balance
    body: dict[str, Any]
    private: dict[str, Any] | None
    private_sha256: str | None
    previous_sha256: str
    sha256: str

    def expected_sha256(self) -> str:
        """The hash that this record's content and predecessor require."""
        content = {
            "account": self.account,
            "at": self.at,
            "attempt": self.attempt,
            "body": self.body,
            "committed_usd": money.text(self.balance.committed_usd),
            "kind": self.kind,
            "previous": self.previous_sha256,
            "private": self.private_sha256,
            "reserved_usd": money.text(self.balance.reserved_usd),
            "run": self.run,
            "seq": self.seq,
        }
        return hashlib.sha256(rfc8785.dumps(content)).hexdigest()


def record_of(row: tuple[Any, ...]) -> Record:
    """Return the record that a row of COLUMNS holds."""
    return Record(
        seq=row[0],
        kind=row[1],
        account=row[2],
        run=row[3],
        attempt=row[4],
        at=row[5],
        balance=Balance(money.parse_exact(row[6]), money.parse_exact(row[7])),
        body=json.loads(row[8]),
        private=None if row[9] is None else json.loads(row[9]),
        private_sha256=row[10],
        previous_sha256=row[11],
        sha256=row[12],
    )


def canonical(value: Any) -> Any:
    """Return `value` as canonical JSON can hold it and read back: lone surrogates replaced.

    Numbers that it cannot hold (integers beyond 2**53, floats as large, NaN) become their text.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {canonical(str(name)): canonical(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, (int, float)) and not abs(value) <= _LARGEST:
        return hex(value) if isinstance(value, int) and value.bit_length() > 4096 else str(value)
    return value
