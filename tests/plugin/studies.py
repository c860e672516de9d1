"""Small real studies for the tests of the plugin: a git corpus, a docs server, a provider on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_studyminimal.evidence.ledger import Ledger
from pytest_studyminimal.reports.view import view

QUICKSTART = Path(__file__).resolve().parents[2] / "studies" / "quickstart"
KEY_NAME = "TINY_STUDY_KEY"
KEY = "sk-tiny-0123456789-secret"
FILES = {
    "docs/budget.md": "# Budget\n\nThe cap is cumulative.\nA reservation comes before a call.\n",
    "docs/order.md": "# Order\n\nArms alternate by task and repetition.\n",
    "src/budget.py": "CAP = 1\n\n\ndef reserve(amount):\n    return amount\n",
}
TEST_FILE = "def test_attempt(study_attempt):\n    study_attempt.run()\n"
PRICES = """
[prices]
source = "a list"
date = "2026-10-10"

[[prices.tiers]]
up_to_prompt_tokens = 100000
input = "0.10"
output = "0.50"
cache_read = "0.01"
cache_write_5m = "0.125"
cache_write_1h = "0.20"

[[prices.tiers]]
input = "0.50"
output = "2.50"
cache_read = "0.05"
cache_write_5m = "0.625"
cache_write_1h = "1.00"
"""


def git(folder, *arguments):
    """Run git without anybody's configuration and return what it printed."""
    names = ("GIT_AUTHOR", "GIT_COMMITTER")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        **{f"{name}_NAME": "Case" for name in names},
        **{f"{name}_EMAIL": "case@example.invalid" for name in names},
        **{f"{name}_DATE": "2026-01-02T03:04:05Z" for name in names},
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_repository(folder, files=None):
    """Make a repository of one commit and return its commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main", ".")
    for name, text in (FILES if files is None else files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    return git(folder, "rev-parse", "HEAD")


@dataclass(frozen=True)
class TinyStudy:
    """A study folder, the checkout of its corpus, and a place for its ledger."""

    folder: Path
    checkout: Path
    ledger: Path

    @property
    def arguments(self):
        return (f"--study-root=corpus={self.checkout}", f"--study-ledger={self.ledger}")

    def edit(self, old, new):
        """Change the study file; the old text must be there."""
        file = self.folder / "study.toml"
        text = file.read_text(encoding="utf-8")
        assert old in text, f"{old!r} is not in the study file"
        file.write_text(text.replace(old, new), encoding="utf-8")

    def add(self, text):
        """Put more at the end of the study file."""
        with (self.folder / "study.toml").open("a", encoding="utf-8") as file:
            file.write(text)

    def records(self, kind=None):
        with Ledger.open(self.ledger, "tiny") as ledger:
            return ledger.records(kind=kind)

    def last_run(self):
        with Ledger.open(self.ledger, "tiny") as ledger:
            return view(ledger, ledger.records(kind="run")[-1].run)

    def statuses(self):
        return [line.status for line in self.last_run().lines]


def make_study(
    base,
    *,
    base_url=None,
    server=("{python}", "docs_server.py", "{export}"),
    tasks=("alpha",),
    repetitions=1,
    parallel=False,
    limits="",
    files=None,
    agent=None,
    kit="",
):
    """Write a study with the arms `plain` and `docs`; without a base_url it rehearses.

    `agent` are more lines of a connection to Claude Code that takes the place of the API's, `kit`
    more lines of the server's table.
    """
    folder, checkout = base / "studies" / "tiny", base / "checkout"
    folder.mkdir(parents=True)
    commit = make_repository(checkout, files)
    shutil.copy(QUICKSTART / "docs_server.py", folder)
    provider = (
        'provider = "rehearsal"'
        if base_url is None
        else f'provider = "anthropic"\nbase_url = "{base_url}"\nkey = "{KEY_NAME}"'
    )
    connection = (
        f'[connections.http]\ntransport = "messages-api"\nmodel = "claude-haiku-5-5"\n{provider}'
        if agent is None
        else '[connections.cli]\ntransport = "claude-code"\nversion = "2.1.296"\n'
        f'model = "claude-haiku-5-5"\nalias = true\n{agent}'
    )
    questions = "".join(
        f'[[tasks]]\nid = "{task}"\ncorpus = "corpus"\n'
        f'question = "What does the {task} budget reserve? Cite paths and lines."\n'
        for task in tasks
    )
    (folder / "study.toml").write_text(
        f"""
schema = 1
id = "tiny"
title = "Tiny"
question = "Does it work?"
[limits]
{limits}
[budget]
pilot_usd = "1"
full_usd = "2"
attempt_usd = "0.50"
{connection}
{PRICES}
[corpora.corpus]
commit = "{commit}"
[servers.docs]
argv = {json.dumps(list(server))}
allow = ["doc.search", "doc.get", "handoff.resolve"]
ready = {{ tool = "doc.search", arguments = {{ query = "budget" }} }}
{kit}
[scenarios.plain]
tools = ["list", "read", "search"]
[scenarios.docs]
tools = ["list", "read", "search"]
servers = ["docs"]
{questions}
[schedule]
repetitions = {repetitions}
parallel = {str(parallel).lower()}
""",
        encoding="utf-8",
    )
    (folder / "answers.toml").write_text(
        "".join(
            f'[tasks.{task}]\npropositions = ["PROPOSITION-{task}"]\nsources = ["docs/budget.md"]\n'
            for task in tasks
        ),
        encoding="utf-8",
    )
    (folder / "test_tiny.py").write_text(TEST_FILE, encoding="utf-8")
    return TinyStudy(folder, checkout, base / "state" / "ledger.sqlite3")


def python_processes(marker):
    """Return the command lines of running processes that mention `marker` (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if marker in line and state != "Z":
                found.append(line)
    return found


def environment(**extra):
    """The environment of a study session in a child process."""
    return {**os.environ, KEY_NAME: KEY, "PYTHONDONTWRITEBYTECODE": "1", **extra}


PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
