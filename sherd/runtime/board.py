"""The board: what every worker is doing, in shared memory, readable at any time without asking anyone.

Each worker writes only its own row, the parent writes the two flags, and every entry is one aligned 64-bit
word: nobody locks, so nobody who is killed can leave a lock behind. Readers may see a row between two of its
writes, which is good enough for a display and a ledger. No NumPy here: it must not be imported before a
worker has set the number of threads that NumPy may use.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory

_WORD = 8
_HEAD = 8  # words before the first row: one cache line
_ROW = 16  # words per worker: two cache lines, so that no two workers write to the same one
_STOPPING, _CLOSED, _LAST = 0, 1, 2
_NOWHERE, BUSY, WAITING, SENDING = 0, 1, 2, 3  # the time accounts; also the words of a row that hold them
_ACCOUNT, _SINCE, _STEPS = 4, 5, 6


class Board:
    """A row of numbers per worker, and two flags of the run; made by the parent, pickled to the workers.

    >>> board = Board.create(2)
    >>> board.row(1).steps = 7
    >>> board.row(1).steps, board.stopping, board.closed
    (7, False, False)
    >>> board.close(); board.unlink()
    >>> board.row(1).steps  # what was last written stays readable
    7
    """

    def __init__(self, memory: SharedMemory, size: int) -> None:
        self.size = size
        self._memory = memory
        self._attached = self._linked = True
        self.words: memoryview[int] = memory.buf[: _words(size) * _WORD].cast("q")  # type: ignore[index]

    @staticmethod
    def create(size: int) -> Board:
        """A board of zeros; the name tells whose it is, so that a leak can be found."""
        name = f"sherd-board-{os.getpid()}-{secrets.token_hex(3)}"
        return Board(SharedMemory(name, create=True, size=_words(size) * _WORD), size)

    def __reduce__(self) -> tuple[object, ...]:
        return _attach, (self._memory.name, self.size)

    def __len__(self) -> int:
        return self.size

    def row(self, index: int) -> Row:
        """The numbers of one worker."""
        if not 0 <= index < self.size:
            raise IndexError(f"row {index} of a board of {self.size}")
        return Row(self, _HEAD + _ROW * index)

    @property
    def stopping(self) -> bool:
        """Whether the user asked for an orderly end."""
        return bool(self.words[_STOPPING])

    @stopping.setter
    def stopping(self, value: bool) -> None:
        self.words[_STOPPING] = value

    @property
    def closed(self) -> bool:
        """Whether everybody is to leave now."""
        return bool(self.words[_CLOSED])

    @closed.setter
    def closed(self, value: bool) -> None:
        self.words[_CLOSED] = value

    @property
    def last(self) -> int | None:
        """After how many iterations the learners end, once one of them has decided."""
        return self.words[_LAST] - 1 if self.words[_LAST] else None

    @last.setter
    def last(self, value: int) -> None:
        self.words[_LAST] = value + 1

    def close(self) -> None:
        """Detach from the shared memory, keeping a private copy of what it said."""
        if self._attached:
            self._attached = False
            shared, self.words = self.words, memoryview(bytearray(self.words)).cast("q")
            shared.release()
            self._memory.close()

    def unlink(self) -> None:
        """Remove the shared memory; only its maker does, and a second call does nothing."""
        if self._linked:
            self._linked = False
            with contextlib.suppress(FileNotFoundError):
                self._memory.unlink()


def _words(size: int) -> int:
    return _HEAD + _ROW * size


def _attach(name: str, size: int) -> Board:
    return Board(SharedMemory(name), size)


class _Word:
    """One number of a row."""

    def __init__(self, position: int) -> None:
        self._position = position

    def __get__(self, row: Row, owner: type | None = None) -> int:
        return row.board.words[row.start + self._position]

    def __set__(self, row: Row, value: int) -> None:
        row.board.words[row.start + self._position] = int(value)


@dataclass(frozen=True)
class Times:
    """Where a worker's time went, in nanoseconds."""

    busy: int
    waiting: int
    sending: int


class Row:
    """One worker's numbers; assignments are seen by every process."""

    heartbeat = _Word(7)  # time.monotonic_ns() of the last sign of life, 0: none yet
    steps = _Word(_STEPS)
    iterations = _Word(8)
    staleness = _Word(9)  # of what was last used, in versions of the parameters
    alive = _Word(10)
    attempt = _Word(11)
    cpu = _Word(12)  # nanoseconds of processor time that this process has used

    def __init__(self, board: Board, start: int) -> None:
        self.board = board
        self.start = start

    def times(self) -> Times:
        """The three accounts, including what the open one has gathered until now."""
        words, start = self.board.words, self.start
        totals = list(words[start + BUSY : start + SENDING + 1])
        account, since = words[start + _ACCOUNT], words[start + _SINCE]
        if account != _NOWHERE:
            totals[account - 1] += max(0, time.monotonic_ns() - since)
        return Times(*totals)

    @property
    def busy(self) -> int:
        """Nanoseconds of work."""
        return self.times().busy

    @property
    def waiting(self) -> int:
        """Nanoseconds of waiting for others."""
        return self.times().waiting

    @property
    def sending(self) -> int:
        """Nanoseconds of handing results over."""
        return self.times().sending

    def bury(self) -> None:
        """The worker is gone: its open account is charged until its last sign of life."""
        words, start = self.board.words, self.start
        account, words[start + _ACCOUNT] = words[start + _ACCOUNT], _NOWHERE
        if account != _NOWHERE:
            words[start + account] += max(0, self.heartbeat - words[start + _SINCE])
        self.alive = 0


class Clock:
    """A worker's time accounts: what is spent neither waiting nor sending is busy.

    The totals live in the board, so a worker that is started again goes on with those of its predecessor.

    >>> board = Board.create(1)
    >>> clock = Clock(board.row(0))
    >>> with clock.sending(), clock.waiting():  # accounts nest: the innermost one is charged
    ...     clock.count(8)
    >>> board.row(0).steps, board.row(0).waiting > 0
    (8, True)
    >>> board.close(); board.unlink()
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self._words = row.board.words
        self._start = row.start
        self._outer: list[int] = []
        self._account = BUSY
        self._since = time.monotonic_ns()
        self._waiting, self._sending = _Account(self, WAITING), _Account(self, SENDING)
        self._words[self._start + _SINCE] = self._since
        self._words[self._start + _ACCOUNT] = BUSY

    def waiting(self) -> _Account:
        """A context whose time counts as waiting for others."""
        return self._waiting

    def sending(self) -> _Account:
        """A context whose time counts as handing results over."""
        return self._sending

    def count(self, steps: int) -> None:
        """So many more environment steps are done."""
        self._words[self._start + _STEPS] += steps

    def enter(self, account: int) -> None:
        """From now on charge `account`."""
        self._outer.append(self._account)
        self._charge(account)

    def leave(self) -> None:
        """From now on charge the account that was charged before."""
        self._charge(self._outer.pop())

    def stop(self) -> None:
        """Nothing is charged any more."""
        self._charge(self._account)
        self._words[self._start + _ACCOUNT] = _NOWHERE

    def _charge(self, account: int) -> None:
        now, words, start = time.monotonic_ns(), self._words, self._start
        words[start + self._account] += now - self._since
        words[start + _SINCE] = self._since = now
        words[start + _ACCOUNT] = self._account = account


class _Account:
    """What `with clock.waiting():` enters; reused, because waits are many."""

    def __init__(self, clock: Clock, account: int) -> None:
        self._clock = clock
        self._account = account

    def __enter__(self) -> None:
        self._clock.enter(self._account)

    def __exit__(self, *error: object) -> None:
        self._clock.leave()
