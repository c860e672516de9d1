"""Ctrl-C and SIGTERM wait while the ledger is written: a payment is whole, or it is not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold both signals back for the block and deliver the first of them at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple[int, FrameType | None]] = []
    names = (signal.SIGINT, signal.SIGTERM)
    before = {name: signal.getsignal(name) for name in names}
    for name in names:
        signal.signal(name, lambda number, frame: pending.append((number, frame)))
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        for number, frame in pending[:1]:
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)
            elif handler == signal.SIG_DFL:
                os.kill(os.getpid(), number)
