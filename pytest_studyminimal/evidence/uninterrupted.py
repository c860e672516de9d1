"""Ctrl-C and SIGTERM wait while the ledger is written: a payment is whole, or it is not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold both signals back for the block and deliver the first of them at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    interrupt, terminate = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    try:
        # A signal between these two lines raises here, before the block: nothing was written then.
        signal.signal(signal.SIGINT, keep)
        signal.signal(signal.SIGTERM, keep)
        yield
    finally:
        try:
            signal.signal(signal.SIGTERM, terminate)
        finally:
            signal.signal(signal.SIGINT, interrupt)
        for number in pending[:1]:
            _deliver(number, interrupt if number == signal.SIGINT else terminate)


def _deliver(number: int, handler: Any) -> None:
    if callable(handler):
        handler(number, None)
    elif handler == signal.SIG_DFL:
        os.kill(os.getpid(), number)
