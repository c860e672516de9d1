"""Published programs that tests run, each installed once into .cache/."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("STUDYMINIMAL_TEST_CACHE") or Path(__file__).parents[2] / ".cache")
INSTALL_S = 300
QUIET = ("--no-audit", "--no-fund", "--loglevel=error")


def installed(folder, marker, install):
    """Install once; a half-finished installation is thrown away. Skips with the last line said."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Workers side by side install once.
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed(folder, marker, install)


def _installed(folder, marker, install):
    if (folder / marker).exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        install(folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines() or [str(error)]
        pytest.skip(f"cannot install into {folder.name}: {said[-1]}")
    (folder / marker).touch()
    return folder


def command(*argv, cwd=None):
    subprocess.run(argv, cwd=cwd, check=True, capture_output=True, timeout=INSTALL_S)


def npm():
    """Return npm's program, or skip where it or node is absent."""
    found = shutil.which("npm")
    if found is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")
    return found


def agents():
    """Return the folder with the agent CLIs of package.json, at exactly the builds of its lock."""
    program = npm()
    here = Path(__file__).parent

    def install(folder):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(here / name, folder)
        command(program, "ci", *QUIET, cwd=folder)

    return installed(CACHE / "agents", "installed-2.1.296", install) / "node_modules" / ".bin"
