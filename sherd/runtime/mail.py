"""Messages from a worker to the supervisor: frames in a pipe that neither side can be stuck on.

`multiprocessing`'s own `Connection.recv` waits for the rest of a message that has begun. A worker that is
stopped in the middle of one would stop the supervisor too, so the supervisor reads what there is and puts
frames together itself. This is the control path (rows, ready, done); data never travels here.
"""

from __future__ import annotations

import os
import select
import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from sherd.errors import RunError

_HEADER = struct.Struct("!BQ")
_CHUNK = 1 << 16  # what a pipe holds
_CHUNKS_AT_ONCE = 16  # and then the others: one that talks without end must not hide them
_PATIENCE_MS = 200


class Kind(IntEnum):
    """What a frame is about."""

    ARRIVED = 1  # the worker is set up and enters its entry
    SAID = 2  # a message of the entry's
    RETURNED = 3  # the entry returned
    RAISED = 4  # the entry raised: cause, traceback, whether the user can fix it


class Outbox:
    """The worker's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._broken = False
        os.set_blocking(connection.fileno(), False)

    def send(self, kind: Kind, message: Any, watch: Callable[[], None]) -> None:
        """Hand a message over; a full pipe is waited for, as long as `watch` does not raise."""
        body = ForkingPickler.dumps(message)
        frame = memoryview(_HEADER.pack(kind, len(body)) + bytes(body))
        with self._lock:
            if self._broken:
                return
            self._broken = True  # half a frame makes the rest unreadable: whole again only if all went well
            self._write(frame, watch)
            self._broken = False

    def _write(self, frame: memoryview, watch: Callable[[], None]) -> None:
        writable = select.poll()
        writable.register(self._connection.fileno(), select.POLLOUT)
        while frame:
            try:
                frame = frame[os.write(self._connection.fileno(), frame) :]
            except BlockingIOError:
                writable.poll(_PATIENCE_MS)
                watch()
            except BrokenPipeError:
                from sherd.runtime.shared import Closed  # imports NumPy: not before the threads are limited

                raise Closed("nobody listens any more") from None


class Inbox:
    """The supervisor's end."""

    def __init__(self, connection: Connection | None = None) -> None:
        self._connection = connection
        self._bytes = bytearray()
        if connection is not None:
            os.set_blocking(connection.fileno(), False)

    @property
    def open(self) -> bool:
        """Whether something may still arrive."""
        return self._connection is not None

    def fileno(self) -> int:
        """What to wait on, while it is open."""
        return self._connection.fileno() if self._connection is not None else -1

    def read(self) -> list[tuple[Kind, Any]]:
        """The messages that are complete by now; never waits. All of them, once the worker is dead."""
        for _ in range(_CHUNKS_AT_ONCE):
            if not self.open:
                break
            try:
                found = os.read(self.fileno(), _CHUNK)
            except BlockingIOError:
                break
            self._bytes += found
            if not found:
                self.close()
        return self._frames()

    def close(self) -> None:
        """Give the pipe back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _frames(self) -> list[tuple[Kind, Any]]:
        frames = []
        start = 0
        while len(self._bytes) - start >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._bytes, start)
            end = start + _HEADER.size + length
            if end > len(self._bytes):
                break
            frames.append((Kind(kind), _unpack(self._bytes[start + _HEADER.size : end])))
            start = end
        del self._bytes[:start]
        return frames


def _unpack(body: bytearray) -> Any:
    try:
        return ForkingPickler.loads(body)
    except Exception as error:
        raise RunError(f"a worker sent what cannot be read here: {type(error).__name__}: {error}") from error
