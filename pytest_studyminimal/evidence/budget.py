"""The cap: reserve before spend, settle after, stop for good. All of it is in the ledger first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.records import Balance
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import (
    AlreadyStartedError,
    BudgetRefusedError,
    LedgerError,
    RunStoppedError,
)

if TYPE_CHECKING:
    from decimal import Decimal

    from pytest_studyminimal.evidence.ledger import Ledger
    from pytest_studyminimal.protocol.records import Observation


@dataclass(frozen=True)
class Charged:
    """All that an attempt was charged, and whether every part of it was measured by the provider."""

    usd: Decimal
    measured: bool


@dataclass(frozen=True)
class Budget:
    """What one run may still spend of its account; usable from every process of the run.

    The cap is the smaller of what was approved for this run and what was approved last for the
    account, read with each reservation: nobody else's approval raises what this run announced.
    Charged plus reserved never passes it, except by what a provider charged beyond a reservation.
    """

    ledger: Ledger
    account: str
    run: str

    def approve(self, cap_usd: Decimal, *, phase: str, series: str, source: str) -> None:
        """Record an explicit decision on the account's cap, inside a transaction.

        Raises BudgetRefusedError where less is allowed than is committed already.
        """
        balance = self.ledger.balance(self.account)
        if cap_usd < balance.committed_usd:
            raise _refused(cap_usd, balance, money.ZERO)
        body = {"cap_usd": money.text(cap_usd), "phase": phase, "series": series, "source": source}
        self.ledger.append("approval", account=self.account, run=self.run, body=body)

    def cap_usd(self) -> Decimal:
        """Return the run's cap; LedgerError where none was approved."""
        return cap_of(self.ledger, self.account, self.run)

    def balance(self) -> Balance:
        """Return the account's committed and reserved dollars."""
        return self.ledger.balance(self.account)

    def admit(self, attempt: str, needed_usd: Decimal) -> None:
        """Refuse early what the first reservation would refuse; nothing is written.

        Raises RunStoppedError, AlreadyStartedError or BudgetRefusedError.
        """
        self._refuse_stopped()
        if self.ledger.has("start", run=self.run, attempt=attempt):
            raise _already_started(attempt)
        self._refuse_beyond_cap(needed_usd)

    def start(self, attempt: str) -> None:
        """Record the one start of an attempt.

        Raises RunStoppedError where the run was stopped, AlreadyStartedError on a second start.
        """
        with self.ledger.transaction():
            self._refuse_stopped()
            if self.ledger.has("start", run=self.run, attempt=attempt):
                raise _already_started(attempt)
            self.ledger.append(
                "start", account=self.account, run=self.run, attempt=attempt, body={}
            )

    def reserve(self, attempt: str, usd: Decimal) -> int:
        """Check and append a reservation in one transaction and return its number.

        It is on disk when this returns. Raises BudgetRefusedError, RunStoppedError or LedgerError.
        """
        with self.ledger.transaction():
            self._refuse_stopped()
            balance = self._refuse_beyond_cap(usd)
            return self.ledger.append(
                "reserve",
                account=self.account,
                run=self.run,
                attempt=attempt,
                body={"usd": money.text(usd)},
                balance=Balance(
                    money.add(balance.committed_usd, usd), money.add(balance.reserved_usd, usd)
                ),
            )

    def settle(self, reservation: int, charged_usd: Decimal, *, measured: bool) -> None:
        """Replace a reservation by what it cost; never clamped, also where it cost more.

        `measured` is false where the reservation itself is kept as the charge.
        """
        with self.ledger.transaction():
            self.settle_inside(reservation, charged_usd, measured=measured)

    def settle_inside(self, reservation: int, charged_usd: Decimal, *, measured: bool) -> None:
        """As `settle`, within a transaction that the caller holds."""
        reserve = self.ledger.record(reservation)
        reserved_usd = money.parse_exact(reserve.body["usd"])
        balance = self.ledger.balance(self.account)
        change = money.subtract(charged_usd, reserved_usd)
        self.ledger.append(
            "settle",
            account=self.account,
            run=reserve.run,
            attempt=reserve.attempt,
            body={
                "charged_usd": money.text(charged_usd),
                "measured": measured,
                "reservation": reservation,
            },
            balance=Balance(
                money.add(balance.committed_usd, change),
                money.subtract(balance.reserved_usd, reserved_usd),
            ),
        )

    def retain_open(self, attempt: str) -> Charged:
        """Settle every open reservation of an attempt at its full amount, inside a transaction.

        Returns all that the attempt was charged.
        """
        mine = self.ledger.records(run=self.run, attempt=attempt)
        settled = {record.body["reservation"] for record in mine if record.kind == "settle"}
        settles = [record.body for record in mine if record.kind == "settle"]
        charges = [money.parse_exact(body["charged_usd"]) for body in settles]
        measured = all(body["measured"] for body in settles)
        for record in mine:
            if record.kind == "reserve" and record.seq not in settled:
                amount = money.parse_exact(record.body["usd"])
                self.settle_inside(record.seq, amount, measured=False)
                charges.append(amount)
                measured = False
        return Charged(usd=money.total(charges), measured=measured)

    def observe(self, observation: Observation, private: dict[str, object]) -> None:
        """Append a judged attempt; any status but completed stops the run in the same transaction."""
        with self.ledger.transaction():
            self.observe_inside(observation, private)

    def observe_inside(
        self, observation: Observation, private: dict[str, object], *, stops: bool = True
    ) -> None:
        """As `observe`, within a transaction that the caller holds.

        `stops` is false where the rule book lets others follow what did not complete.
        """
        self.ledger.append(
            "observation",
            account=self.account,
            run=self.run,
            attempt=observation.attempt.id,
            body=observation.model_dump(mode="json", exclude_none=True),
            private=private,
        )
        if observation.status != "completed" and stops:
            self._stop(observation.attempt.id, observation.status)

    def _stop(self, attempt: str, why: str) -> None:
        if not self.ledger.has("stop", run=self.run):
            self.ledger.append(
                "stop", account=self.account, run=self.run, attempt=attempt, body={"why": why}
            )

    def stop(self, why: str, attempt: str = "") -> None:
        """Stop the run for every process of it; nothing of it starts afterwards."""
        with self.ledger.transaction():
            self._stop(attempt, why)

    def _refuse_stopped(self) -> None:
        stops = self.ledger.records(run=self.run, kind="stop", limit=1)
        if stops:
            first = stops[0]
            by = f" at {first.attempt}" if first.attempt else ""
            raise RunStoppedError(f"the run stopped{by}: {first.body['why']}")
        if self.ledger.has("close", run=self.run):
            raise RunStoppedError("the run is closed; a run is never reopened")

    def _refuse_beyond_cap(self, needed_usd: Decimal) -> Balance:
        cap_usd = self.cap_usd()
        balance = self.ledger.balance(self.account)
        if money.add(balance.committed_usd, needed_usd) > cap_usd:
            raise _refused(cap_usd, balance, needed_usd)
        return balance


def cap_of(ledger: Ledger, account: str, run: str) -> Decimal:
    """Return the smaller cap of the run's own approval and the account's last one.

    Raises LedgerError where there is none.
    """
    approvals = [
        *ledger.last("approval", account=account),
        *ledger.records(run=run, kind="approval", limit=1),
    ]
    if not approvals:
        raise LedgerError(
            f"account {account}: found no approved budget, required one before any spending"
        )
    return min(money.parse_exact(record.body["cap_usd"]) for record in approvals)


def _refused(cap_usd: Decimal, balance: Balance, needed_usd: Decimal) -> BudgetRefusedError:
    return BudgetRefusedError(
        cap_usd=cap_usd,
        spent_usd=balance.spent_usd,
        reserved_usd=balance.reserved_usd,
        needed_usd=needed_usd,
    )


def _already_started(attempt: str) -> AlreadyStartedError:
    return AlreadyStartedError(f"{attempt} was started before; an attempt runs at most once")
