"""A program that plays Claude Code, and a study for it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import studies

HERE = Path(__file__).parent


@dataclass(frozen=True)
class StandIn:
    """A program in a folder of its own that plays Claude Code, and what it was started with."""

    folder: Path

    @property
    def program(self):
        return self.folder / "claude"

    @property
    def option(self):
        return f"--study-agent=claude-code={self.program}"

    def behaves(self, **how):
        (self.folder / "behaviour.json").write_text(json.dumps(how), encoding="utf-8")

    @property
    def starts(self):
        files = sorted(self.folder.glob("started-*.json"))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    @property
    def versions_asked(self):
        return len(list(self.folder.glob("version-*.json")))


def make_standin(base):
    folder = base / "standin"
    folder.mkdir()
    one = StandIn(folder)
    text = (HERE / "standin.py").read_text(encoding="utf-8")
    one.program.write_text(
        text.replace("/usr/bin/env python3", sys.executable, 1), encoding="utf-8"
    )
    one.program.chmod(0o755)
    return one


def make_study(base):
    """Write a study of one task with the arms `plain` and `docs` over Claude Code."""
    one = studies.make_study(base / "study", agent="", limits="deadline_s = 20")
    one.edit('attempt_usd = "0.50"', 'attempt_usd = "0.10"')
    return one
