"""How many of the rows that wait to have back before acting: found by trying, as a run goes on.

Whoever acts for few rows at a time keeps none of them waiting, but pays for a call each time. If the core has
nothing else to do that is free; if it is busy with the simulators' own work, waiting for all of them is
faster. Which of the two a run is depends on simulator, network and machine, so it is measured: a loop over
all turns is made with one number, the next with another. What is computed is the same with each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

_PARTS = (1, 2, 8, 16)  # all, half of them, ...
_TRIES = 3  # loops with each number before the fastest is taken
# Of the latest loops with each number. Their lower quartile counts: other work only slows loops down.
_REMEMBERED = 8
_AGAIN = 32  # every so many loops a neighbour has its turn: simulators may get slower or faster


class Patience:
    """Chooses a number of rows for every loop, from how long loops took.

    >>> patience = Patience(32)
    >>> for _ in range(40):
    ...     patience.took(1.0 / patience.rows)
    >>> patience.rows
    32
    """

    def __init__(self, rows: int) -> None:
        self._numbers = sorted({max(1, rows // part) for part in _PARTS}, reverse=True)
        self._seconds: dict[int, deque[float]] = {
            number: deque(maxlen=_REMEMBERED) for number in self._numbers
        }
        self._loops = 0
        self.rows = rows

    def took(self, seconds: float) -> None:
        """A loop that waited for `rows` took so long; from here on `rows` is the next loop's."""
        if self._loops:  # the first one compiles
            self._seconds[self.rows].append(seconds)
        tried = self._loops - _TRIES * len(self._numbers)
        self._loops += 1
        if tried < 0:
            self.rows = self._numbers[self._loops % len(self._numbers)]
        elif tried % _AGAIN == _AGAIN - 1:
            # Those next to the fastest: one that is far from it would cost much, as a rule.
            place = self._numbers.index(self._fastest())
            others = self._numbers[max(0, place - 1) : place] + self._numbers[place + 1 : place + 2]
            self.rows = others[tried // _AGAIN % len(others)] if others else self.rows
        else:
            self.rows = self._fastest()

    def _fastest(self) -> int:
        return min(self._numbers, key=lambda number: _lower_quartile(self._seconds[number]))


def _lower_quartile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]
