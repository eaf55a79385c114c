"""Acting in a host loop: one small call for each turn, whose results lie where the rollout keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sherd.graph.ir import Ref, Scope, Value, defines
from sherd.lower.packing import Constants, Results
from sherd.lower.parts import Clock, Store
from sherd.lower.regions import Region, roles_in


def only_acts(region: Region) -> bool:
    """Whether a region is one to pack."""
    return all(roles_in(item) <= {"act"} for item in region.items) and not region.donated


class PackedRegion:
    """A region that only acts, with its place in the store, in a scope that the host walks.

    What a turn hands on, and the rollout, are views of the vectors that the calls return.
    """

    def __init__(
        self, region: Region, scope: Scope, values: dict[int, Value], rows: int, rollouts: int
    ) -> None:
        self.region = region
        defined = [value for item in scope.body for value in defines(item)]
        changing = {scope.index, *(carry.inner for carry in scope.carries), *defined}
        self._constants = Constants([ref for ref in region.kept if ref.value not in changing])
        self._varying = [ref for ref in region.kept if ref.value in changing]
        # What the next turn is given stays where it was computed.
        self._results = Results(region.outputs, values, rows, [carry.result for carry in scope.carries])
        # As many sets as the driver has, and for the same reason.
        size = (scope.trips, self._results.layout.size)
        self._stacks = [np.zeros(size, np.int32) for _ in range(rollouts + 1)]
        self._turns = [[self._results.views(words) for words in stack] for stack in self._stacks]
        self._set = self._turn = 0
        self._call = jax.jit(self._compiled)

    def begin(self, store: Store, clock: Clock) -> None:
        """Enter the scope: pack what stays the same in all of its turns."""
        self._given = self._constants.pack(store, clock.seed, clock.env_index)
        self._set, self._turn = (self._set + 1) % len(self._stacks), 0

    def _compiled(self, words: jax.Array, large: list[Any], varying: tuple[Any, ...], now: Any) -> Any:
        known, (seed, env_index) = self._constants.unpack(words, large)
        known |= dict(zip(self._varying, varying))
        others = tuple(known[ref] for ref in self.region.kept)
        return self._results.pack(self.region.function()((), others, now, seed, env_index))

    def run(self, store: Store, clock: Clock) -> None:
        varying = tuple(ref.pick(store[ref.value]) for ref in self._varying)
        words, apart = self._call(*self._given, varying, clock.now)
        self._stacks[self._set][self._turn] = words
        outputs = self._results.joined(self._turns[self._set][self._turn], apart)
        store.update(zip(self.region.outputs, outputs))
        self._turn += 1

    def stacked(self, leaf: Any) -> Callable[[], Any] | None:
        """How to get a value stacked over all turns without copying, if all of it is packed."""
        if not isinstance(leaf, Ref) or leaf.value not in self.region.outputs:
            return None
        if set(self._results.leaves_of(leaf)) & set(self._results.apart):
            return None
        return lambda: self._results.pick(leaf, self._results.views(self._stacks[self._set]))
