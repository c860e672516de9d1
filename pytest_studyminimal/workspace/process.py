"""One child program: its own session, bounded streams, an end that takes descendants along."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.workspace.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TERM_S = 1.0
KILL_S = 2.0
_POLL_S = 0.005
_CHUNK = 65_536
_TAIL_BYTES = 4096


@dataclass(frozen=True)
class Finished:
    """How a short program ended; `stdout` is decoded with replacement and cut at the cap.

    `returncode` is negative for a signal, as in subprocess; it is our own where `timed_out`.
    """

    returncode: int
    stdout: str
    stderr_tail: str
    timed_out: bool


def shown(text: str, limit: int) -> str:
    """Return the first `limit` characters of `text` in quotes, escaped to one printable line."""
    safe = (
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in text[:limit]
    )
    return f"'{''.join(safe)}'" + ("…" if len(text) > limit else "")


def ending(status: int) -> str:
    """Return a status of subprocess as words: `exit status 3` or `signal SIGSEGV`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


class Child:
    """A started program with non-blocking pipes. `stop` ends it and its descendants, `close` pipes.

    Raises OSError or ValueError where it cannot be started. `forced` says that it had to be
    signalled; `returncode` is known after `stop`. Its descendants end with it, stopped or not.
    """

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self.forced = False
        self.returncode: int | None = None
        self._tail = bytearray()
        self._guard = Guard(argv, cwd=cwd, env=env)
        self._pipes = self._guard.pipes
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)

    @property
    def pid(self) -> int:
        """The program's process id, also of its group and session."""
        return self._guard.pid

    @property
    def stderr_tail(self) -> str:
        """The last 4096 bytes read from stderr."""
        return self._tail.decode("utf-8", "replace")

    def status(self) -> int | None:
        """Return how the program ended, negative for a signal, None while it runs."""
        return self._guard.status() if self.returncode is None else self.returncode

    def wait(self, seconds: float) -> int | None:
        """Return the status once the program ends, None where it still runs after `seconds`."""
        until = time.monotonic() + seconds
        while (status := self.status()) is None and time.monotonic() < until:
            time.sleep(_POLL_S)
        return status

    def read_stderr(self) -> bool:
        """Move what is there into the tail; False at the end of stderr."""
        data = read_now(self.stderr)
        if data:
            self._tail += data
            del self._tail[:-_TAIL_BYTES]
        return data != b""

    def close_stdin(self) -> None:
        """Close the program's input, which ends a polite one. Idempotent."""
        with contextlib.suppress(OSError):
            self._pipes[0].close()

    def stop(self, grace_s: float = 0.0) -> None:
        """Close stdin, wait `grace_s`, then SIGTERM and SIGKILL; at most 5 s more. Idempotent."""
        if self.returncode is not None:
            return
        self.close_stdin()
        if self.wait(grace_s) is None:
            self.forced = True
            self._guard.terminate()
            self.wait(TERM_S)
        self._guard.end(KILL_S)
        self.returncode = self._guard.status()

    def close(self) -> None:
        """Take what is left of stderr and close all pipes. Idempotent."""
        if not self._pipes[2].closed:
            for _ in range(64):
                if not self.read_stderr():
                    break
        for pipe in self._pipes:
            pipe.close()


def read_now(descriptor: int) -> bytes | None:
    """Read from a non-blocking pipe: None where nothing is there yet, empty at its end."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def run(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float, max_bytes: int
) -> Finished:
    """Run a short program without input, and end it with its descendants, latest at the deadline.

    Output beyond `max_bytes` is read and dropped. Raises OSError or ValueError as `Child` does.
    """
    child = Child(argv, cwd=cwd, env=env)
    try:
        child.close_stdin()
        stdout, timed_out = _collect(child, time.monotonic() + timeout_s, max_bytes)
    finally:
        child.stop()
        child.close()
    code = child.returncode
    return Finished(
        returncode=-int(signal.SIGKILL) if code is None else code,
        stdout=stdout.decode("utf-8", "replace"),
        stderr_tail=child.stderr_tail,
        timed_out=timed_out,
    )


def _collect(child: Child, until: float, max_bytes: int) -> tuple[bytes, bool]:
    kept = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        selector.register(child.stderr, selectors.EVENT_READ)
        while time.monotonic() < until:
            ended = child.status() is not None
            # A pipe can stay open after the program's end, in the hands of what it started.
            ready = [key.fd for key, _ in selector.select(0 if ended else _POLL_S)]
            if ended and not ready:
                return bytes(kept), False
            for descriptor in ready:
                is_stderr = descriptor == child.stderr
                if not (child.read_stderr() if is_stderr else _keep(child, kept, max_bytes)):
                    selector.unregister(descriptor)
    return bytes(kept), True


def _keep(child: Child, kept: bytearray, max_bytes: int) -> bool:
    data = read_now(child.stdout)
    kept += (data or b"")[: max(0, max_bytes - len(kept))]
    return data != b""
