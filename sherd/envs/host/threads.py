"""A thread for each of a batch's simulators, for those that spend their steps waiting for something else.

A simulator that asks a game server, a browser or a robot leaves its process idle until the answer comes. With
a thread each, all rows of a batch wait at the same time. One that computes gains nothing: Python runs one
thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

METADATA = "waits"  # what an environment's `metadata` says to be stepped in threads
# How many threads are woken at first; each wakes one more. Woken all together, they would only wake to wait
# for Python's lock, one behind the other.
_AT_ONCE = 2
_NONE = (None,) * _AT_ONCE
_NOBODY = sys.maxsize  # so many rows nobody waits for


class Threads:
    """As many threads as there are rows, each of which calls a function with its row when it is started."""

    def __init__(self, rows: int) -> None:
        self._function: Callable[[int], None] | None = None
        self._errors: dict[int, BaseException] = {}
        self._done: deque[int] = deque()  # rows, and ~row of those that failed
        self._wanted, self._ringing = _NOBODY, threading.Lock()  # how many somebody waits for
        self._next: list[int | None] = [None] * rows
        self._chain: Sequence[int] = ()
        # A lock that is taken is a bell that has not rung: the cheapest there is between threads.
        self._enough = threading.Lock()
        self._enough.acquire()
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
        self.start(function, range(len(self._bells)))
        self.finished(len(self._bells))

    def start(self, function: Callable[[int], None], rows: Sequence[int]) -> None:
        """Have function(row) called for some rows, of which none is at work."""
        self._function = function
        if rows != self._chain:  # mostly all of them, again and again
            self._chain, after = rows, self._next
            for row, another in zip(rows, (*rows[_AT_ONCE:], *_NONE)):
                after[row] = another
        for row in rows[:_AT_ONCE]:
            self._bells[row].release()

    def finished(self, least: int) -> list[int]:
        """Wait until so many rows are done: all that are. Raises what the lowest of them raised."""
        done = self._done
        if not least:
            _let_others_go_first()
        if len(done) < least:
            self._wanted = least
            if len(done) >= least:  # the last of them was done before it could know
                self._ring()
            self._enough.acquire()
        rows = [done.popleft() for _ in range(len(done))]
        if self._errors and (failed := [~row for row in rows if row < 0]):
            errors = {row: self._errors.pop(row) for row in failed}
            raise errors[min(errors)]
        return rows

    def _ring(self) -> None:
        """Wake whoever waits, once."""
        with self._ringing:
            waited, self._wanted = self._wanted < _NOBODY, _NOBODY
        if waited:
            self._enough.release()

    def close(self) -> None:
        """End the threads; those that are still waiting are given a second, all together."""
        self._function = None
        self._ring()  # somebody may wait for rows that never come back
        for bell in self._bells:
            if bell.locked():
                bell.release()
        until = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    def _work(self, row: int) -> None:
        # What is done in every step needs no lock: appending is one operation, and says who has failed too.
        _wait_for_a_turn()
        bell, bells, chain, done = self._bells[row], self._bells, self._next, self._done
        while True:
            bell.acquire()
            function = self._function
            if function is None:
                return
            after = chain[row]
            if after is not None:
                bells[after].release()
            try:
                function(row)
                done.append(row)
            except BaseException as raised:
                self._errors[row] = raised
                done.append(~row)
            if len(done) >= self._wanted:
                self._ring()


# Whoever waits for Python's lock gets it, and comes to its end.
_let_others_go_first: Callable[[], Any] = getattr(os, "sched_yield", lambda: time.sleep(0))


def _wait_for_a_turn() -> None:
    """Let this thread, when it is woken, not push aside another one, which holds Python's lock.

    Measured: 26 instead of 31 us of processor time for a step of a simulator that sleeps.
    """
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or not allowed
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def give_way() -> None:
    """Give the thread that calls this a lower priority than those that step simulators, which run by now.

    Measured, by turns: 1.01 times as many steps of simulators that sleep 1 ms.
    """
    if sys.platform == "linux":  # where a thread has a priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
