"""What starts a child and ends it with its descendants: a supervisor that also outlives us."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARKER = "STUDYMINIMAL_CHILD"
"""The variable that every child carries, for where no supervisor can find all that is left."""

_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
# A Python with a shared library may need them; nothing else of ours is to be read in /proc.
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_ROUNDS = 100
_QUIET_ROUNDS = 10
_POLL_S = 0.005


class Guard:
    """One child under a supervisor, which ends its descendants also after a SIGKILL of this process.

    On Linux the supervisor is a subreaper: whatever its sessions and environment, a descendant has
    it as an ancestor, and nobody else has. Not reached is what another program was asked to start
    (cron, systemd, a container daemon), or what changed to another user. Where nobody adopts, the
    process group is ended, and what carries the mark, for which macOS has no /proc.

    Raises OSError or ValueError where the child cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        mark = uuid.uuid4().hex
        self._mark = f"{MARKER}={mark}".encode()
        self._said = b""
        self._status: int | None = None
        order = _order(argv, cwd, {**env, MARKER: mark})
        self._link, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(self._link.close)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _SUPERVISOR, str(theirs.fileno())],
                cwd="/",
                env={name: os.environ[name] for name in _LIBRARIES if name in os.environ},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                bufsize=0,
            )
            undo.pop_all()
        try:
            self._link.sendall(order)
            self.pid = self._started(argv[0], cwd)
        except BaseException:
            self.end(1.0)
            for pipe in self.pipes:
                pipe.close()
            raise
        self._link.setblocking(False)

    def _started(self, program: str, cwd: Path) -> int:
        while b"\n" not in self._said:
            data = self._link.recv(1000)
            if not data:
                raise OSError(errno.ECHILD, os.strerror(errno.ECHILD), _SUPERVISOR)
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        pid, number, place = line.decode().split()
        if number != "0":
            where = str(cwd) if place == "cwd" else program
            raise OSError(int(number), os.strerror(int(number)), where)
        return int(pid)

    @property
    def pipes(self) -> tuple[IO[bytes], ...]:
        """The child's stdin, stdout and stderr."""
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        return tuple(pipe for pipe in pipes if pipe is not None)

    def status(self) -> int | None:
        """Return how the child ended, None while it runs; SIGKILL where nobody can say."""
        while self._status is None:
            try:
                data = self._link.recv(1000)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._said += data
            if not data or self._said.endswith(b"\n"):
                self._status = int(self._said or -signal.SIGKILL)
        return self._status

    def terminate(self) -> None:
        """Send SIGTERM to the child's process group."""
        with contextlib.suppress(OSError):
            self._link.send(b"T")

    def end(self, seconds: float) -> None:
        """End the child and all its descendants within about `seconds`. Idempotent."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        try:
            left = self._process.wait(seconds) != 0
        except subprocess.TimeoutExpired:
            left = True
            self._process.kill()
            self._process.wait()
        self.status()
        self._link.close()
        if left:
            _end_marked(self._mark)


def _order(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> bytes:
    pairs = [f"{name}={value}" for name, value in env.items()]
    parts = [os.fsencode(part) for part in (str(cwd), *argv, *pairs)]
    if any(b"\0" in part for part in parts):
        raise ValueError("embedded null byte")
    data = b"\0".join([str(len(argv)).encode(), *parts])
    return b"%d\n%s" % (len(data), data)


def _end_marked(mark: bytes) -> None:
    quiet = 0 if Path("/proc/self/environ").exists() else _QUIET_ROUNDS
    for _ in range(_ROUNDS):
        # In the middle of an exec a process has no environment for a moment.
        if quiet >= _QUIET_ROUNDS:
            return
        found = _marked(mark)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        time.sleep(_POLL_S)


def _marked(mark: bytes) -> list[int]:
    found = []
    # Not a glob, which raises for a process that ends while it looks.
    for name in filter(str.isdigit, os.listdir("/proc") if Path("/proc").is_dir() else ()):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found
