"""What the parts of an attempt cost, as ratios within one run: absolute times drift from machine to machine.

Usage: python benchmarks/parts.py [--json]. Takes about half a minute.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path

from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.protocol.manifest import load
from pytest_studyminimal.workspace.corpus import Corpus, read_corpus
from pytest_studyminimal.workspace.export import export
from pytest_studyminimal.workspace.tools import RepositoryTools

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "studies" / "quickstart"


def median_ms(action, times):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def filled(path, records):
    """A ledger with that many records and a budget on it."""
    ledger = Ledger.open(path, "benchmark")
    budget = Budget(ledger, "benchmark", "run")
    with ledger.transaction():
        budget.approve(Decimal(1000000), phase="pilot", series="s", source="benchmark")
        for _ in range(records):
            ledger.append("note", account="benchmark", run="other", body={"filler": "x" * 100})
    return ledger, budget


def reservations(work):
    """One reserve and settle, in a small ledger and in a large one, in turns."""
    opened = [filled(work / f"{records}" / "ledger.sqlite3", records) for records in (10, 100_000)]
    taken = ([], [])
    for _ in range(200):
        for (_, budget), times in zip(opened, taken, strict=True):
            times.append(median_ms(lambda budget=budget: pay(budget), 1))
    for ledger, _ in opened:
        ledger.close()
    return statistics.median(taken[0]), statistics.median(taken[1])


def pay(budget):
    reservation = budget.reserve("task:arm:1", Decimal("0.01"))
    budget.settle(reservation, Decimal("0.001"), measured=True)


WRITER = """
import sys, time
from decimal import Decimal
from pathlib import Path
from pytest_studyminimal.evidence.budget import Budget
from pytest_studyminimal.evidence.ledger import Ledger
with Ledger.open(Path(sys.argv[1]), "benchmark") as ledger:
    budget = Budget(ledger, "benchmark", "run")
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for _ in range(int(sys.argv[2])):
        reservation = budget.reserve("task:arm:1", Decimal("0.01"))
        budget.settle(reservation, Decimal("0.001"), measured=True)
    print(time.perf_counter() - began, flush=True)
"""


def writers(work):
    """One writer of 200 payments, then eight at once of 25 each: whole time, slowest and fastest."""
    ledger, _ = filled(work / "writers" / "ledger.sqlite3", 10)
    ledger.close()
    alone = paid(work, 1, 200)
    together = paid(work, 8, 25)
    return max(together) / alone[0], max(together) / min(together)


def paid(work, count, payments):
    command = [
        sys.executable,
        "-c",
        WRITER,
        str(work / "writers" / "ledger.sqlite3"),
        str(payments),
    ]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for one in started:
        one.stdout.readline()
    for one in started:
        one.stdin.write("go\n")
        one.stdin.flush()
    return [float(one.communicate()[0]) for one in started]


def exports(work):
    """One export and its removal, on disk and on a memory file system where there is one."""
    folder = load(QUICKSTART)
    pin = folder.study.corpora["project"]
    corpus = read_corpus("project", pin, QUICKSTART / pin.bundle)

    def once(parent):
        with export(corpus, parent) as copy:
            assert not copy.changes()

    disk = median_ms(lambda: once(work), 20)
    memory = Path("/dev/shm")
    return disk, median_ms(lambda: once(memory), 20) if memory.is_dir() else None


def searches():
    """One repo_search over 8 MB, and one plain search through the same bytes."""
    files = {f"{number:03}": b"some words of text\n" * 860 for number in range(500)}
    ids = dict.fromkeys(files, "")
    corpus = Corpus(name="c", commit="", files=files, blob_ids=ids, excluded={})
    tools = RepositoryTools(corpus, ("search",))
    ours = median_ms(lambda: tools.call("repo_search", {"query": "absent words"}), 20)
    return ours, median_ms(lambda: [data.find(b"absent words") for data in files.values()], 20)


def start_ups(work):
    """A bare pytest with and without the plugin loaded."""
    (work / "test_empty.py").write_text("def test_empty(): pass\n")

    def session(*arguments):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *arguments,
            str(work),
        ]
        subprocess.run(command, cwd=work, capture_output=True, check=True)

    with_plugin, without = [], []
    for _ in range(7):
        with_plugin.append(median_ms(session, 1))
        without.append(median_ms(lambda: session("-p", "no:studyminimal"), 1))
    return statistics.median(with_plugin), statistics.median(without)


def main():
    work = Path(tempfile.mkdtemp(prefix="studyminimal-benchmark-"))
    try:
        few, many = reservations(work)
        shared, uneven = writers(work)
        disk, memory = exports(work)
        tool, plain = searches()
        with_plugin, without = start_ups(work)
    finally:
        shutil.rmtree(work)
    rows = [
        ("reserve + settle: 100,000 records / 10 records", many / few),
        ("200 payments by eight writers at once / by one", shared),
        ("the slowest of eight writers / the fastest", uneven),
        ("repo_search over 8 MB / bytes.find over the same", tool / plain),
        ("bare pytest with the plugin / without it", with_plugin / without),
    ]
    if memory is not None:
        rows.insert(1, ("export, check, remove: disk / memory", disk / memory))
    if "--json" in sys.argv:
        print(
            json.dumps({"rows": [{"what": what, "ratio": round(ratio, 2)} for what, ratio in rows]})
        )
        return
    for what, ratio in rows:
        print(f"{what:52} {ratio:6.2f}")


if __name__ == "__main__":
    main()
