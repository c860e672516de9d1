"""Where a study folder stands in its own repository: a pre-registration for free."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from pytest_studyminimal.workspace.places import INHERITED

if TYPE_CHECKING:
    from pathlib import Path

_DEADLINE_S = 10.0
# The folder is the user's own, but a status must still run no program that its repository names.
_SWITCHES = ("--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


def describe_folder(folder: Path) -> dict[str, str | bool]:
    """Return the git `commit` of a study folder and whether the folder is `dirty`; nothing if unknown."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    # Collecting the study's test file writes bytecode beside it.
    paths = (".", ":(exclude,glob)**/__pycache__/**")
    status = _git(folder, "status", "--porcelain", "-z", "--ignore-submodules=all", "--", *paths)
    if commit is None or status is None:
        return {}
    return {"commit": commit.strip(), "dirty": bool(status)}


def _git(folder: Path, *arguments: str) -> str | None:
    # A status may start filters of the user's repository: they get no key of a model.
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    try:
        done = subprocess.run(
            ["git", *_SWITCHES, *arguments],  # noqa: S607 - the user's git, as on their command line
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE_S,
            check=True,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")
