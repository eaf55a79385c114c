"""One compiled call that acts for several units, each of them at its own turn of a loop."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sherd.graph.ir import Node, Ref, Value
from sherd.lower.packing import Constants, Results
from sherd.lower.parts import Store
from sherd.lower.regions import Item, Region, inputs_of


class UnitCall:
    """Acts for units of `rows` environments; `wanted` are the values to be computed for each of them.

    Inputs that are the same for all units and turns are packed when the loop begins. The rest, `cuts`, is
    given with every call, leaf by leaf, and has the units in front.
    """

    def __init__(
        self, items: list[Item], wanted: set[int], inner: set[int], values: dict[int, Value], rows: int
    ) -> None:
        made = [node.output for node in items if isinstance(node, Node)]
        self.outputs = [value for value in made if value in wanted]
        self._region = Region(items, inputs_of(items), self.outputs, [])
        same = [
            ref
            for ref in self._region.inputs
            if ref.value not in inner and all(axis < 0 for axis in env_axes(values, ref))
        ]
        self.cuts = [ref for ref in self._region.inputs if ref not in same]
        self._cut_tree = jax.tree.structure([ref.pick(values[ref.value].type) for ref in self.cuts])
        self.results = Results(self.outputs, values, rows)
        self._constants = Constants(same)
        self._compiled = jax.jit(self._batched)

    def begin(self, store: Store, seed: Any) -> None:
        """Enter the loop: pack what stays the same in all of its turns."""
        self._given = self._constants.pack(store, seed)

    def act(self, cut: list[Any], now: Any, turns: Any, index: Any) -> tuple[Any, list[Any]]:
        """What is computed for units at these turns: words for each unit, and what is not packed."""
        words, apart = self._compiled(*self._given, cut, now, turns, index)
        return words, apart

    def _batched(self, words: Any, large: Any, cut: list[Any], now: Any, turns: Any, index: Any) -> Any:
        same, (seed,) = self._constants.unpack(words, large)
        function = self._region.function()

        def one(mine: list[Any], turn: Any, env_index: Any) -> Any:
            known = same | dict(zip(self.cuts, jax.tree.unflatten(self._cut_tree, mine)))
            inputs = tuple(known[ref] for ref in self._region.inputs)
            return self.results.pack(function((), inputs, jnp.append(now, turn), seed, env_index))

        return jax.vmap(one)(cut, turns, index)


def env_axes(values: dict[int, Value], ref: Ref) -> list[int]:
    """For every leaf under a reference the axis of the environments; below zero: it has none."""
    return jax.tree.leaves(ref.pick(values[ref.value].axes_tree()))
