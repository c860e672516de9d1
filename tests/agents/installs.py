"""Published programs that tests run, each installed once into .cache/."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
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


def codex():
    """Return the native program of Codex 0.162.1; its node wrapper exits 0 after SIGTERM."""
    vendor = _native() / "@openai" / f"codex-{_platform()}" / "vendor"
    return _program(vendor.glob("*/bin/codex"), vendor)


def opencode():
    """Return the program of OpenCode 1.18.33, of which only linux-x64 was published when it was measured."""
    package = _native() / f"opencode-{_platform()}"
    return _program(package.glob("bin/opencode"), package)


def _native():
    program = npm()
    here = Path(__file__).parent / "native"

    def install(folder):
        for name in ("package.json", "package-lock.json"):
            shutil.copy(here / name, folder)
        command(program, "ci", "--ignore-scripts", *QUIET, cwd=folder)

    marker = "installed-0.162.1-1.18.33"
    return installed(CACHE / "native-agents", marker, install) / "node_modules"


def _platform():
    """Return the name that npm's packages give to this platform, such as linux-x64."""
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
    told = platform.machine().lower()
    return f"{sys.platform}-{machine.get(told, told)}"


def _program(found, folder):
    program = next(found, None)
    if program is None:
        pytest.skip(f"no program was published for this platform: {folder.name} is not installed")
    return program
