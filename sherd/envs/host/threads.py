"""A thread for each of a batch's simulators, for those that spend their steps waiting for something else.

A simulator that asks a game server, a browser or a robot leaves its process idle until the answer comes. With
a thread each, all rows of a batch wait at the same time. One that computes gains nothing: Python runs one
thread at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

METADATA = "waits"  # what an environment's `metadata` says to be stepped in threads
# How many threads are woken at first; each wakes one more. Woken all together, they would only wake to wait
# for Python's lock, one behind the other.
_AT_ONCE = 2


class Threads:
    """As many threads as there are rows; `each` has a function called once by every one of them."""

    def __init__(self, rows: int) -> None:
        self._function: Callable[[int], None] | None = None
        self._errors: dict[int, BaseException] = {}
        self._left, self._counting = 0, threading.Lock()
        # A lock that is taken is a bell that has not rung: the cheapest there is between threads.
        self._finished = threading.Lock()
        self._finished.acquire()
        self._bells = [threading.Lock() for _ in range(rows)]
        for bell in self._bells:
            bell.acquire()
        # Daemons: a simulator that never answers must not keep a finished run alive.
        self._threads = [
            threading.Thread(target=self._work, args=(row,), name=f"sherd-row-{row}", daemon=True)
            for row in range(rows)
        ]
        for thread in self._threads:
            thread.start()

    def each(self, function: Callable[[int], None]) -> None:
        """Call function(row) for every row, all at once; raise what the lowest row raised."""
        self._function, self._left = function, len(self._bells)
        self._errors.clear()
        for bell in self._bells[:_AT_ONCE]:
            bell.release()
        self._finished.acquire()
        if self._errors:
            raise self._errors[min(self._errors)]

    def close(self) -> None:
        """End the threads; those that are still waiting are given a second, all together."""
        self._function = None
        for bell in self._bells:
            if bell.locked():
                bell.release()
        until = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    def _work(self, row: int) -> None:
        bell, after = self._bells[row], self._bells[row + _AT_ONCE : row + _AT_ONCE + 1]
        while True:
            bell.acquire()
            if self._function is None:
                return
            for next_bell in after:
                next_bell.release()
            try:
                self._function(row)
            except BaseException as error:
                self._errors[row] = error
            with self._counting:
                self._left -= 1
                last = not self._left
            if last:
                self._finished.release()
