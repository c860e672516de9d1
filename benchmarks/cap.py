"""Whether a cap holds: attempts of 0.50 under a cap of 1.00, by workers, sessions and after a kill.

Usage: python benchmarks/cap.py [--json]. Under a minute. The agent is a small program that answers as
Claude Code does and bills each start in a file of its own, the provider's side: `billed_usd` is what
was really spent, whatever a ledger says.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "studies" / "quickstart"
EACH = Decimal("0.50")
CAP = Decimal("1.00")
TASKS = 5

AGENT = r"""
import json, os, sys, time
from pathlib import Path
here = Path(sys.argv[0]).resolve().parent
if "--version" in sys.argv:
    print("1.0.0 (benchmark)")
    sys.exit(0)
with open(here / "bills", "ab", buffering=0) as bills:
    bills.write(b"0.50\n")
time.sleep(0.2)
while (here / "hold").exists() and len((here / "bills").read_bytes().split()) > 1:
    time.sleep(0.05)
model = sys.argv[sys.argv.index("--model") + 1]
tools = [name for name in sys.argv[sys.argv.index("--allowedTools") + 1].split(",") if name]
counts = {"inputTokens": 0, "outputTokens": 1000000, "cacheReadInputTokens": 0, "cacheCreationInputTokens": 0}
usage = {"input_tokens": 0, "output_tokens": 1000000}
for event in (
    {"type": "system", "subtype": "init", "tools": tools, "mcp_servers": [], "model": model,
     "claude_code_version": "1.0.0"},
    {"type": "assistant", "message": {"id": "m", "model": model, "usage": usage,
     "content": [{"type": "text", "text": "Yes."}]}},
    {"type": "result", "subtype": "success", "is_error": False, "num_turns": 1, "result": "Yes.",
     "total_cost_usd": 0.5, "usage": usage, "modelUsage": {model: counts}, "permission_denials": []},
):
    print(json.dumps(event), flush=True)
"""
STUDY = """
schema = 1
id = "cap"
title = "Does the cap hold?"
question = "Does it?"
[budget]
pilot_usd = "1"
full_usd = "1"
attempt_usd = "0.50"
[connections.agent]
transport = "claude-code"
version = "1.0.0"
model = "m"
[prices]
source = "made up"
date = "2026-01-01"
[[prices.tiers]]
input = "0.10"
output = "0.50"
cache_read = "0.01"
cache_write_5m = "0.125"
cache_write_1h = "0.20"
[corpora.project]
commit = "{commit}"
bundle = "corpus.bundle"
[scenarios.one]
tools = ["read"]
[scenarios.two]
tools = ["read"]
{tasks}
[schedule]
repetitions = 1
parallel = true
[pilot]
tasks = {count}
"""


class Place:
    """A study in a folder of its own, with an agent that bills."""

    def __init__(self, base):
        self.base = base
        self.study = base / "studies" / "cap"
        self.study.mkdir(parents=True)
        quickstart = (QUICKSTART / "study.toml").read_text(encoding="utf-8")
        commit = quickstart.partition('commit = "')[2][:40]
        shutil.copy(QUICKSTART / "corpus.bundle", self.study)
        tasks = "".join(
            f'[[tasks]]\nid = "t{number}"\ncorpus = "project"\nquestion = "Does it hold?"\n'
            for number in range(TASKS)
        )
        text = STUDY.replace("{commit}", commit).replace("{tasks}", tasks)
        (self.study / "study.toml").write_text(text.replace("{count}", str(TASKS)))
        (self.study / "answers.toml").write_text(
            "".join(
                f'[tasks.t{number}]\npropositions = ["It does."]\nsources = ["README.md"]\n'
                for number in range(TASKS)
            )
        )
        (self.study / "test_cap.py").write_text(
            "def test_attempt(study_attempt):\n    study_attempt.run()\n"
        )
        self.agent = base / "agent"
        self.agent.write_text(f"#!{sys.executable} -IS\n{AGENT}")
        self.agent.chmod(0o755)

    @property
    def bills(self):
        with contextlib.suppress(FileNotFoundError):
            return [Decimal(bill) for bill in (self.base / "bills").read_text().split()]
        return []

    def start(self, workers):
        """Start a session of that many workers; one is a session without any."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--study=pilot"]
        parallel = ["-n", str(workers)] if workers > 1 else []
        plugins = ["-p", "studyminimal", "-p", "xdist"]
        options = [
            f"--study-agent=claude-code={self.agent}",
            f"--study-ledger={self.base / 'state' / 'ledger.sqlite3'}",
        ]
        return subprocess.Popen(
            [*command, *plugins, *parallel, *options, str(self.study)],
            cwd=self.base,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def one_session(place, workers):
    place.start(workers).wait()


def two_sessions(place, workers):
    for session in [place.start(workers), place.start(workers)]:
        session.wait()


def killed_and_started_again(place, workers):
    """Kill a session in its second attempt, and start two more after it."""
    (place.base / "hold").touch()
    session = place.start(workers)
    while len(place.bills) < 2 and session.poll() is None:
        time.sleep(0.02)
    session.send_signal(signal.SIGKILL)
    session.wait()
    (place.base / "hold").unlink()
    for _ in range(2):
        place.start(workers).wait()


SETUPS = (
    ("one session", one_session, 1),
    ("one session", one_session, 2),
    ("one session", one_session, 4),
    ("one session", one_session, 8),
    ("two sessions at once", two_sessions, 2),
    ("killed, then two more sessions", killed_and_started_again, 1),
)


def main():
    rows = []
    for setup, action, workers in SETUPS:
        with tempfile.TemporaryDirectory() as folder:
            place = Place(Path(folder))
            action(place, workers)
            billed = sum(place.bills, Decimal(0))
            rows.append(
                {
                    "setup": setup,
                    "workers": workers,
                    "billed_usd": str(billed),
                    "attempts": len(place.bills),
                }
            )
    if "--json" in sys.argv[1:]:
        print(json.dumps({"rows": rows}, indent=2))
    else:
        print(f"cap {CAP} USD, {EACH} USD for each attempt, {2 * TASKS} attempts asked for")
        for row in rows:
            print(
                f"{row['setup']:<32} {row['workers']} workers  {row['attempts']} attempts "
                f" {row['billed_usd']} USD billed"
            )
    return any(Decimal(row["billed_usd"]) > CAP for row in rows)


if __name__ == "__main__":
    sys.exit(main())
