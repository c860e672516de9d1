"""One run of an agent CLI: its output drained, its deadline kept, its end certain."""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.evidence.uninterrupted import interrupts_wait
from pytest_studyminimal.transports.stream import Lines
from pytest_studyminimal.workspace.process import Child, read_now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pytest_studyminimal.protocol.records import Ending

GRACE_S = 10.0
"""How long a process may stay after its result."""
_RESULT = b'"result"'
_POLL_S = 0.05
_LAST_WORDS_S = 0.3
_MOST_WORDS_S = 2.0


@dataclass(frozen=True)
class Ended:
    """How a run ended. `exit_status` is None where the process had to be ended by us."""

    ending: Ending
    exit_status: int | None
    stayed: bool
    cut: bool
    stdout: bytes
    stderr: str
    wall_s: float


class NotStartedError(Exception):
    """The program could not be started; the message says why in a few public words."""


class _Limits:
    """When to stop waiting: the deadline, the grace after a result, silence after the end."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._grace_ends: float | None = None
        self._ended_at: float | None = None
        self._quiet_at: float | None = None

    def passed(self, *, done: bool) -> tuple[Ending, bool] | None:
        """Return how a program that still runs must end now, None where it may go on."""
        now = time.monotonic()
        if now >= self._until:
            return "deadline", False
        if done:
            self._grace_ends = self._grace_ends or now + GRACE_S
        return ("finished", True) if self._grace_ends and now >= self._grace_ends else None

    def silent(self, *, heard: bool) -> bool:
        """Whether a program that has ended said its last: its pipes may live on in other hands."""
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        self._quiet_at = None if heard else self._quiet_at or now
        quiet = self._quiet_at is not None and now - self._quiet_at >= _LAST_WORDS_S
        return quiet or now - self._ended_at >= _MOST_WORDS_S


@dataclass
class AgentProcess:
    """A run of `argv`; `take` gets every line of stdout, `done` says that a result has come."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    deadline_s: float
    most_bytes: int
    take: Callable[[bytes], None]
    done: Callable[[], bool]

    def run(self) -> Ended:
        """Start, read to the end, and end what is left. Raises NotStartedError where it cannot start.

        An interrupt is an ending too: what was seen until then is returned, never lost. Whatever else
        is raised, the process has ended before.
        """
        started = time.monotonic()
        lines = Lines(self.most_bytes)
        child: Child | None = None
        ending: Ending = "interrupted"
        stayed = False
        try:
            with interrupts_wait():
                child = self._started()
            child.close_stdin()
            ending, stayed = self._watch(child, lines, started + self.deadline_s)
        except KeyboardInterrupt:
            pass
        except BaseException:
            if child is not None:
                child.stop()
                child.close()
            raise
        if child is None:
            return Ended(ending, None, False, False, b"", "", 0.0)
        status = child.status()
        try:
            with interrupts_wait():
                self._finish(child, lines)
        except KeyboardInterrupt:
            ending = "interrupted"
        return Ended(
            ending=ending,
            exit_status=status,
            stayed=stayed,
            cut=lines.cut,
            stdout=bytes(lines.kept),
            stderr=child.stderr_tail,
            wall_s=time.monotonic() - started,
        )

    def _started(self) -> Child:
        try:
            return Child(self.argv, cwd=self.cwd, env=self.env)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            raise NotStartedError(why or type(error).__name__) from None

    def _finish(self, child: Child, lines: Lines) -> None:
        stopping = threading.Thread(target=child.stop, name="agent-stop", daemon=True)
        try:
            stopping.start()
            # What is written while it is told to end may hold the result, and with it the cost.
            while stopping.is_alive():
                if not self._available(child, lines):
                    stopping.join(_POLL_S)
            while self._available(child, lines):
                pass
            for line in lines.end():
                if not lines.cut or _RESULT in line:
                    self.take(line)
        finally:
            stopping.join()
            child.close()

    def _available(self, child: Child, lines: Lines) -> bool:
        with contextlib.suppress(OSError, ValueError):
            if data := read_now(child.stdout):
                self._take(data, lines)
                return True
        return False

    def _watch(self, child: Child, lines: Lines, until: float) -> tuple[Ending, bool]:
        """Read until the program has ended, or the deadline or the grace after its result has."""
        limits = _Limits(until)
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            selector.register(child.stderr, selectors.EVENT_READ)
            while True:
                running = child.status() is None
                if running and (end := limits.passed(done=self.done())):
                    return end
                if not selector.get_map():
                    time.sleep(_POLL_S)
                ready = [key.fd for key, _ in selector.select(_POLL_S)]
                for descriptor in ready:
                    if not self._read(child, descriptor, lines):
                        selector.unregister(descriptor)
                if not running and (not selector.get_map() or limits.silent(heard=bool(ready))):
                    return "finished", False

    def _read(self, child: Child, descriptor: int, lines: Lines) -> bool:
        if descriptor == child.stderr:
            return child.read_stderr()
        data = read_now(child.stdout)
        self._take(data or b"", lines)
        return data != b""

    def _take(self, data: bytes, lines: Lines) -> None:
        for line in lines.feed(data):
            if not lines.cut:
                self.take(line)
            elif _RESULT in line:
                # Beyond the cap only what may hold a cost is still of interest, and kept.
                lines.keep(line)
                self.take(line)
