"""Real ledgers for tests: opened, filled, and checked record by record."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Attempt, Observation

STUDY = "little-study"
RUN = "run-1"
GENESIS = "0" * 64
PROGRAM = Path(__file__).with_name("spender.py")


def opened(path, study=STUDY):
    """Open the ledger of the study."""
    return Ledger.open(path, study)


def planned(place, name):
    """Return an attempt as a run row lists it."""
    task, scenario, repetition = name.split(":")
    attempt = Attempt(
        place=place, task=task, scenario=scenario, repetition=int(repetition), connection="api"
    )
    return {"id": attempt.id, **attempt.model_dump()}


def begin(ledger, names=("one:plain:1",), *, cap="1", run=RUN, account=STUDY):
    """Append a run row with its approval and return the run's budget."""
    budget = Budget(ledger, account, run)
    body = {
        "planned": [planned(place, name) for place, name in enumerate(names)],
        "selected": list(names),
        "transport": "messages-api",
        "model": "m",
        "rehearsal": False,
    }
    with ledger.transaction():
        ledger.append("run", account=account, run=run, body=body)
        budget.approve(Decimal(cap), phase="full", series="s", source="a test")
    return budget


def observation(name, status="completed", charged="0"):
    """Return the least that an attempt's observation holds."""
    attempt = {key: value for key, value in planned(0, name).items() if key != "id"}
    return Observation(
        attempt=Attempt.model_validate(attempt),
        status=status,
        transport="messages-api",
        model="m",
        charged_usd=Decimal(charged),
        rehearsal=False,
    )


def whole(ledger):
    """Check the chain and every balance of a ledger; return its records."""
    records = ledger.records()
    previous, balances = GENESIS, {}
    for seq, record in enumerate(records, start=1):
        assert record.seq == seq
        assert record.previous_sha256 == previous
        assert record.sha256 == record.expected_sha256()
        previous = record.sha256
        committed, reserved = balances.get(record.account, (money.ZERO, money.ZERO))
        if record.kind == "reserve":
            usd = Decimal(record.body["usd"])
            committed, reserved = money.add(committed, usd), money.add(reserved, usd)
        elif record.kind == "settle":
            usd = Decimal(records[record.body["reservation"] - 1].body["usd"])
            charged = Decimal(record.body["charged_usd"])
            committed = money.add(committed, money.subtract(charged, usd))
            reserved = money.subtract(reserved, usd)
        assert (record.balance.committed_usd, record.balance.reserved_usd) == (committed, reserved)
        balances[record.account] = (committed, reserved)
    return records


def environ():
    """Return the environment in which a child finds this package."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def child(*arguments, program=PROGRAM):
    """Start a real process of the helper program, with pipes."""
    return subprocess.Popen(
        [sys.executable, str(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(),
    )


def together(*children):
    """Wait until all are ready, start them at once, and return what each printed afterwards."""
    for one in children:
        assert one.stdout.readline() == "ready\n", one.stderr.read()
    for one in children:
        one.stdin.write("go\n")
        one.stdin.flush()
    outputs = []
    for one in children:
        out, err = one.communicate(timeout=60)
        assert not err, err
        assert one.returncode == 0
        outputs.append(out.splitlines())
    return outputs
