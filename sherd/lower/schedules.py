"""What follows from the counters alone, such as a share of random actions, for many iterations at once.

A schedule whose value is sent away or acted with cannot compile together with an update. Its own call takes
52 us between two of DQN's updates of 1.1 ms, whatever it computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.graph.ir import Value
from sherd.lower.parts import Clock, Store
from sherd.lower.regions import Region

_AHEAD = 64
_FEW = 64  # numbers; more of them would be kept than a call costs


class HostSchedules:
    """A region that needs nothing but the counters; `counters` are (iteration, total)."""

    def __init__(self, region: Region, counters: tuple[int, int]) -> None:
        self.region = region
        function = region.function()

        def many(first: Any, total: Any, seed: Any, env_index: Any) -> tuple[Any, ...]:
            def one(iteration: Any) -> tuple[Any, ...]:
                known = dict(zip(counters, (iteration, total)))
                others = tuple(known[ref.value] for ref in region.kept)
                return function((), others, jnp.stack([iteration, total]), seed, env_index)

            return jax.lax.map(one, first + jnp.arange(_AHEAD, dtype=jnp.int32))

        self._call = jax.jit(many)
        self._first, self._rows = 0, list[tuple[Any, ...]]()

    def run(self, store: Store, clock: Clock) -> None:
        iteration, total = clock.now
        place = int(iteration) - self._first
        if not 0 <= place < len(self._rows):
            outputs = jax.device_get(self._call(iteration, total, clock.seed, clock.env_index))
            self._rows = [_row(outputs, number) for number in range(_AHEAD)]
            self._first, place = int(iteration), 0
        store.update(zip(self.region.outputs, self._rows[place]))


def follows_from_counters(region: Region, counters: tuple[int, int], values: Mapping[int, Value]) -> bool:
    """Whether a region needs nothing but the counters, and gives few numbers."""
    leaves = jax.tree.leaves([values[output].type for output in region.outputs])
    few = sum(leaf.size for leaf in leaves) <= _FEW
    return few and all(ref.value in counters for ref in region.inputs)


def _row(outputs: Any, number: int) -> Any:
    """One of many results; arrays also where it is a number."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[number]), outputs)
