"""Ctrl-C while JAX traces or a run is started.

Its KeyboardInterrupt comes up in the middle of JAX, which may hold traced values just then and report them as
leaked, fail in another way, or be in a callback that swallows every exception.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Let what was interrupted end with KeyboardInterrupt, whatever became of the first one."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    came = False

    def note(number: int, frame: Any) -> None:
        nonlocal came
        came = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception as error:
        if came:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
