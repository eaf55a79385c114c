"""A call that acts for any rows of a batch, each at its own turn: what it reads, and where results are kept.

A row and its turn are one number, a place: its index in flat arrays of all turns and environments.

Between two calls Python must be quick, because the threads that step simulators wait for its lock, and after
a switch of threads the processor has forgotten what it knew: an operation of NumPy takes some 2 us there,
four times as long as in a loop by itself. So trees are taken apart beforehand, views are made once for every
number of rows, a leaf is gathered by one operation into the memory that the call reads, all results are kept
by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np

from sherd.graph.ir import Ref, is_ref
from sherd.lower.parts import Store
from sherd.lower.unit_call import Places, UnitCall

Take = Callable[[Any, int, np.ndarray, str], Any]


@dataclass
class _Count:
    """What a number of rows is acted for with: memory of the smallest call that holds them, and its views."""

    given: Places
    leaves: list[np.ndarray]  # of what is given, this many rows
    called: np.ndarray  # what the whole call computes
    last: np.ndarray  # this many rows of it, each as one element
    picked: tuple[Any, list[Any]] | None  # views of those rows, if all of them are there


class RowCall:
    """Acts for some rows at a time, of units of one row each; the results of all `places` are kept.

    A call acts for one of `sizes`, the smallest that is enough.
    """

    def __init__(
        self, call: UnitCall, sizes: list[int], places: int, action: Any, carried: list[Ref]
    ) -> None:
        self._sizes, self._call, self._action, self._carried = sizes, call, action, carried
        self.rows, size = sizes[-1], call.results.layout.size
        self._words, self._apart = np.zeros((places, size), np.int32), dict[int, np.ndarray]()
        self._rows = _whole(self._words)
        self._last = np.zeros((self.rows, size), np.int32)
        self._counts: list[_Count] = []  # made when the loop begins: clocks may have more numbers

    def begin(
        self, store: Store, seed: Any, sources: list[tuple[np.ndarray, bool]], tails: np.ndarray
    ) -> None:
        """Enter the loop. Sources: a flat array for every leaf, and whether it is by place or by row."""
        self._call.begin(store, seed)
        if not self._counts:
            given = {size: self._call.places(size, tails.shape[1] - 1) for size in self._sizes}
            self._counts = [self._count(count, given) for count in range(self.rows + 1)]
            self._blank = list(self._sizes)
        every = [(array.reshape(-1, 1, *array.shape[1:]), by_place) for array, by_place in sources]
        every.append((tails, True))
        self._takes = [
            (_take_from(array, leaf.dtype), by_place)
            for (array, by_place), leaf in zip(every, self._counts[0].leaves)
        ]

    def _count(self, count: int, given: dict[int, Places]) -> _Count:
        size = next(size for size in self._sizes if size >= count)
        leaves = [leaf[:count] for leaf in (*given[size].cuts, given[size].tail)]
        last, whole = self._last[:count], not self._call.results.apart
        picked = self._pick(self._leaves_of(last)) if whole else None
        return _Count(given[size], leaves, self._last[:size], _whole(last), picked)

    def act(self, rows: list[int], at: list[int]) -> tuple[Any, list[Any]]:
        """The actions of some rows, and what is carried on, leaf by leaf: valid until the next call."""
        now, places = self._counts[len(rows)], np.array(at)
        for (take, by_place), leaf in zip(self._takes, now.leaves):
            take(places if by_place else rows, 0, leaf, "clip")
        if self._blank:
            self._fill_up(now)
        words, apart = self._call.act(now.given)
        now.called[...] = words
        self._rows[places] = now.last
        return now.picked or self._pick(self._with_apart(places, apart))

    def _fill_up(self, now: _Count) -> None:
        """Nobody's row either holds numbers that may come, now or from another time."""
        if len(now.called) in self._blank:
            self._blank.remove(len(now.called))
            for leaf in (*now.given.cuts, now.given.tail):
                leaf[len(now.last) :] = leaf[0]

    def _pick(self, leaves: list[Any]) -> tuple[Any, list[Any]]:
        pick = self._call.results.pick
        moves = [leaf for ref in self._carried for leaf in jax.tree.leaves(pick(ref, leaves))]
        return jax.tree.map(lambda ref: pick(ref, leaves), self._action, is_leaf=is_ref), moves

    def _with_apart(self, places: np.ndarray, apart: list[Any]) -> list[Any]:
        """The leaves of the last call with those that are not packed, which are kept here."""
        count = len(places)
        leaves, kept = self._leaves_of(self._last[:count]), self._apart
        for number, array in zip(self._call.results.apart, apart):
            leaves[number] = np.asarray(array)[:count, 0]
            if number not in kept:
                shape = (len(self._words), *leaves[number].shape[1:])
                kept[number] = np.zeros(shape, leaves[number].dtype)
            kept[number][places] = leaves[number]
        return leaves

    def _leaves_of(self, words: np.ndarray) -> list[Any]:
        """The leaves in words of as many rows; None for what is not packed."""
        return [leaf if leaf is None else leaf[:, 0] for leaf in self._call.results.views(words)]

    def kept(self, tree: Any, low: int, lead: tuple[int, int]) -> Any:
        """Views of what a tree of references leads to, at all places of some turns from `low` on."""
        high = low + lead[0] * lead[1]
        leaves = self._leaves_of(self._words[low:high])
        for number, array in self._apart.items():
            leaves[number] = array[low:high]
        picked = jax.tree.map(lambda ref: self._call.results.pick(ref, leaves), tree, is_leaf=is_ref)
        return jax.tree.map(lambda array: array.reshape(lead + array.shape[1:]), picked)


def _whole(rows: np.ndarray) -> np.ndarray:
    """Rows of words as single elements: to move those takes a fifth of the time."""
    size = rows.shape[1] * rows.itemsize
    return rows.view(f"V{size}")[:, 0] if size else rows


def _take_from(array: np.ndarray, dtype: Any) -> Take:
    """How to gather rows of an array; flags are numbers where they are gathered."""
    if array.dtype == dtype:
        return cast(Take, array.take)

    def convert(at: Any, axis: int, out: np.ndarray, mode: str) -> None:
        del axis, mode
        out[...] = array[at]

    return convert
