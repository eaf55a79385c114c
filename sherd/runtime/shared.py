"""What processes on one machine share: a block of memory (`Arena`) and bells to wake each other (`Bell`).

Shared memory says nothing about order. Three rules hold for everything built on it here:

- Data is written first, then `fence()`, then a counter that announces it; readers look at the counter, then
  `fence()`, then at the data. A fence keeps processor and compiler from moving accesses across it.
- A counter has exactly one writer. There is no lock in shared memory, because whoever is killed while holding
  one would block everybody else.
- A bell (a semaphore) only wakes. Whoever wakes looks at the counters again, so a ring too many does no harm,
  and a ring that was lost with its process costs one tick.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.synchronize import Semaphore
from time import perf_counter
from typing import Any

import numpy as np

from sherd.errors import RunError

ALIGNMENT = 64  # a cache line: counters of different writers never share one
WORD = 8
TICK = 0.2  # seconds between two looks at the world while waiting

Arrays = list[np.ndarray[Any, Any]]

Watch = Callable[[], None]
"""Called at least every tick while waiting; raises (`Closed`, `RunError`) to end the wait."""


class Closed(Exception):
    """The run is ending: whoever waits is to stop."""


@dataclass(frozen=True)
class Field:
    """One array of a message, as its consumer sees it: all rows.

    >>> Field((128, 8, 4), "float32", axis=1).nbytes
    16384
    """

    shape: tuple[int, ...]
    dtype: str
    axis: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def aligned(nbytes: int) -> int:
    """Bytes rounded up to whole cache lines.

    >>> aligned(1), aligned(64)
    (64, 64)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


_fence = threading.Lock()


def fence_by_lock() -> None:
    """No access that stands before this call in the program is made after one that follows it.

    Python has no fence, but acquiring or releasing a lock (of this process; nobody waits for it) is an atomic
    read-modify-write. Twice, because one pair would let accesses slip in from both sides: the first release
    holds back what came before, the second acquisition what comes after.
    """
    with _fence:
        pass
    with _fence:
        pass


def fence_by_hardware() -> None:
    """As above, where the processor itself keeps loads and stores in order.

    x86 lets only a later load overtake an earlier store, and nothing here depends on that order.
    """


fence = fence_by_hardware if platform.machine().lower() in ("x86_64", "amd64") else fence_by_lock


class ArenaPlan:
    """Adds up what an arena must hold.

    >>> plan = ArenaPlan()
    >>> plan.reserve(10), plan.reserve(100), plan.size
    (0, 64, 192)
    """

    def __init__(self) -> None:
        self.size = 0

    def reserve(self, nbytes: int) -> int:
        """The offset of a new block."""
        offset = self.size
        self.size += aligned(nbytes)
        return offset


class _Segment(SharedMemory):
    """Shared memory that may be closed while arrays still look into it: they keep the mapping alive."""

    def close(self) -> None:
        try:
            super().close()
        except BufferError:
            descriptor = getattr(self, "_fd", -1)  # the mapping has its own duplicate
            if descriptor >= 0:
                os.close(descriptor)
                self._fd = -1


class Arena:
    """One segment of shared memory for a whole run; `words` are its 64-bit integers.

    Passed to a process of the spawn context it attaches itself there by name. Only the creator unlinks it,
    once its children are gone.
    """

    def __init__(self, segment: SharedMemory, size: int, owner: bool) -> None:
        self.name, self.size, self._segment = segment.name, size, segment
        if segment.buf is None:
            raise RunError(f"shared memory {segment.name} is closed")
        buffer = segment.buf[:size]
        self.words = buffer.cast("q")
        # Not np.ndarray(buffer=...): that looks through the read-only view and can be made writeable again.
        self._bytes = {True: np.asarray(buffer), False: np.asarray(buffer.toreadonly())}
        self._unlink = weakref.finalize(self, _unlink, segment, os.getpid()) if owner else None

    @classmethod
    def create(cls, size: int) -> Arena:
        """New memory, named so that a leak can be found: /dev/shm/sherd-<pid>-*."""
        size = max(aligned(size), ALIGNMENT)
        segment = _Segment(f"sherd-{os.getpid()}-{secrets.token_hex(4)}", create=True, size=size)
        try:
            _claim(segment.name, size)
        except BaseException:
            _unlink(segment, os.getpid())
            raise
        return cls(segment, size, owner=True)

    @classmethod
    def attach(cls, name: str, size: int) -> Arena:
        """The memory that another process created."""
        return cls(_Segment(name), size, owner=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Arena.attach, (self.name, self.size)

    def array(
        self, offset: int, shape: tuple[int, ...], dtype: str, writeable: bool = True
    ) -> np.ndarray[Any, Any]:
        """A view; one that is not writeable cannot be made so."""
        nbytes = prod(shape) * np.dtype(dtype).itemsize
        return self._bytes[writeable][offset : offset + nbytes].view(dtype).reshape(shape)

    def close(self) -> None:
        """Detach. Views that are still held stay valid."""
        self._segment.close()

    def unlink(self) -> None:
        """Remove the name, so that the memory is freed when the last process lets go of it."""
        if self._unlink is not None:
            self._unlink()


def _unlink(segment: SharedMemory, creator: int) -> None:
    """Remove a segment's name, in the process that created it."""
    if os.getpid() == creator:
        with contextlib.suppress(FileNotFoundError):
            segment.unlink()
    segment.close()


def _claim(name: str, size: int) -> None:
    """Have the memory for certain: touching what a full /dev/shm cannot give would kill us (SIGBUS)."""
    path = f"/dev/shm/{name}"
    if not os.path.exists(path):
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        room = os.statvfs("/dev/shm")
        raise RunError(
            f"shared memory is too small: this run needs {size / 1e6:,.1f} MB of /dev/shm, "
            f"which has {room.f_bavail * room.f_frsize / 1e6:,.1f} MB free.\n"
            "  fix: make it larger (docker run --shm-size=8g), or use fewer environments or a shorter horizon"
        ) from None
    finally:
        os.close(descriptor)


class Bell:
    """Wakes one waiting process; rings are counted, so one that comes early is not lost."""

    __slots__ = ("_semaphore", "pick_up", "ring")

    def __init__(self, semaphore: Semaphore | None = None) -> None:
        self._semaphore = semaphore or get_context("spawn").Semaphore(0)
        # Bound methods of the semaphore itself: this is the hot path. pick_up(False) takes a ring if there is
        # one, so that rings nobody had to wait for do not pile up.
        self.ring: Callable[[], None] = self._semaphore.release
        self.pick_up: Callable[..., bool] = self._semaphore.acquire

    def __reduce__(self) -> tuple[Any, ...]:
        return Bell, (self._semaphore,)

    def wait(self, watch: Watch) -> None:
        """Block until rung; `watch` is called every tick and may raise."""
        while not self.pick_up(True, TICK):
            watch()


def wait_until(ready: Callable[[], bool], bell: Bell, watch: Watch) -> float:
    """Block until something is so, looking whenever the bell rings and at every tick; the seconds it took.

    It sleeps at once. Looking a few times first was measured on two cores: nothing is gained where the system
    places the processes, and as soon as others want the cores, yielding costs milliseconds.
    """
    began = perf_counter()
    while True:
        bell.pick_up(True, TICK)
        if ready():
            return perf_counter() - began
        watch()


def fill_with_magic(array: np.ndarray[Any, Any]) -> None:
    """Values nobody means (NaN, the extreme integer), so that data that was never written is seen."""
    kind = array.dtype.kind
    if kind in "fc":
        array.fill(np.nan)
    elif kind in "iu":
        limits = np.iinfo(array.dtype)
        array.fill(limits.min if kind == "i" else limits.max)
    elif kind == "b":
        array.fill(True)
    else:
        array.view(np.uint8).fill(0xFF)
