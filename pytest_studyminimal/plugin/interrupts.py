"""Under `--study` SIGTERM acts as Ctrl-C, and a worker without its controller ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextlib.contextmanager
def terminate_as_interrupt(config: pytest.Config) -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that an attempt is recorded before the process ends."""
    if hasattr(config, "workerinput"):
        _end_without_parent()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_without_parent() -> None:
    # After SIGKILL of a controller its workers would go on for 16 s (measured 2026-11-30). What they
    # started ends with them by its parent-death signal; their open reservations stay charged.
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(3)

    threading.Thread(target=watch, name="study-orphan-watch", daemon=True).start()
