"""Under `--study` SIGTERM acts as Ctrl-C, and a worker without its controller ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    import pytest

CARRIED_OUT_S = 5.0
"""How long the first interrupt is left to do its work before another one counts again."""


class Interrupts:
    """Both signals as one KeyboardInterrupt; a second one, while the first is carried out, is none.

    Every ending that the first one begins is bounded; the second would only leave half of it.
    """

    def __init__(self) -> None:
        self._last = float("-inf")
        self._held = False
        self._pending = False
        self._over = False
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Handle one signal."""
        if self._is_carried_out():
            return
        if self._over:
            self._put_back()
            signal.raise_signal(number)
            return
        self._last = time.monotonic()
        if self._held and not self._pending:
            self._pending = True
            return
        raise KeyboardInterrupt

    def _is_carried_out(self) -> bool:
        return time.monotonic() - self._last < CARRIED_OUT_S

    def hold(self) -> None:
        """Keep the next interrupt back: an attempt's servers are stopped and its export is removed.

        Another one after 5 s still ends the session, whatever hangs.
        """
        self._held = True

    def release(self) -> None:
        """Deliver what was kept back."""
        pending = self._pending
        self._held = self._pending = False
        if pending:
            raise KeyboardInterrupt

    def begin(self) -> None:
        """Become the handler of both signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self)

    def end(self) -> None:
        """Put the former handlers back, after an interrupt not before it counts as carried out.

        pytest still has its last words to say: a second Ctrl-C in them would be a traceback.
        """
        self._over = True
        if not self._is_carried_out():
            self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def terminate_as_interrupt(config: pytest.Config, interrupts: Interrupts) -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that an attempt is recorded before the process ends."""
    if hasattr(config, "workerinput"):
        _end_without_parent()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts.begin()
    try:
        yield
    finally:
        interrupts.end()


def _end_without_parent() -> None:
    # After SIGKILL of a controller its workers would go on for 16 s (measured 2026-11-30). What they
    # started ends with them, by the shell that watches each child; open reservations stay charged.
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(3)

    threading.Thread(target=watch, name="study-orphan-watch", daemon=True).start()
