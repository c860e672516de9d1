"""Where a study folder stands in its own repository: a pre-registration for free."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from pytest_studyminimal.workspace.places import INHERITED

_DEADLINE_S = 10.0
# Neither command reads the work tree, so no filter and no fsmonitor of a configuration can run.
_SWITCHES = ("--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
_OWN = ("study.toml", "study.json", "answers.toml", "conftest.py", "*.bundle", "test_*.py")


def describe_folder(folder: Path) -> dict[str, str | bool]:
    """Return the git `commit` of a study folder and whether the folder is `dirty`; nothing if unknown.

    Dirty is a tracked file whose bytes are not those of the commit, and an untracked study file.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    listing = _git(folder, "ls-tree", "-r", "-z", "HEAD", ".")
    if commit is None or listing is None:
        return {}
    blobs = dict(_blobs(listing))
    own = {path.name.encode() for pattern in _OWN for path in folder.glob(pattern)}
    dirty = not own <= set(blobs) or any(_differs(folder, name, blobs[name]) for name in blobs)
    return {"commit": commit.decode().strip(), "dirty": dirty}


def _blobs(listing: bytes) -> list[tuple[bytes, str]]:
    rows = [row.partition(b"\t") for row in listing.split(b"\0") if row]
    return [(name, head.split()[2].decode()) for head, _, name in rows]


def _differs(folder: Path, name: bytes, blob: str) -> bool:
    place = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))  # noqa: PTH118 - bytes
    if place.is_symlink() or not place.is_file():
        return True
    data = place.read_bytes()
    digest = hashlib.sha1 if len(blob) == 40 else hashlib.sha256
    return digest(b"blob %d\0" % len(data) + data).hexdigest() != blob


def _git(folder: Path, *arguments: str) -> bytes | None:
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
    return done.stdout
