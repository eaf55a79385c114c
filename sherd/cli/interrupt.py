"""Ctrl-C: the first one asks a run to end, the second one ends the process, whatever it is doing.

SIGTERM, which schedulers, containers and `timeout` send, is taken for Ctrl-C.

Python runs signal handlers between two of its own instructions, and XLA may compile for a minute within one.
The interpreter's C handler, however, writes to a wakeup descriptor at once; a thread listens there.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
_GRACE_SECONDS = 2.0  # for the orderly way: a KeyboardInterrupt that closes files and the display


@contextmanager
def end_at_second_interrupt() -> Iterator[None]:
    """While this is entered, a second Ctrl-C cannot be held up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    ended = threading.Event()
    threading.Thread(target=_listen, args=(reader, ended), name="interrupts", daemon=True).start()
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    terminate = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.set_wakeup_fd(before)
        ended.set()
        writer.close()


def _listen(reader: socket.socket, ended: threading.Event) -> None:
    count = 0
    with reader:
        while received := reader.recv(16):
            count += received.count(signal.SIGINT)
            if count >= 2 and not ended.wait(_GRACE_SECONDS):
                if sys.stderr.isatty():
                    sys.stderr.write("\x1b[?25h")  # the live display hides the cursor
                os._exit(INTERRUPTED)
