"""One compiled call that acts for several units, each of them at its own turn of a loop.

A call costs more than the arithmetic of a small network, and every array it is given costs it a microsecond
or two. So what differs between units is written into one vector of words, which is kept from call to call;
only what is wide, such as an image, stays apart.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sherd.graph.ir import Node, Ref, Value
from sherd.lower.aliased import aliased
from sherd.lower.packing import Constants, Layout, Results, is_narrow
from sherd.lower.parts import Store
from sherd.lower.regions import Item, Region, inputs_of

_INTEGER = np.dtype(np.int32)


class Places:
    """Where a caller writes what a call is to be given; all leaves have the units in front."""

    def __init__(self, layout: Layout, wide: list[tuple[Any, Any]], narrow: list[bool], rows: int) -> None:
        words, given = aliased((layout.size,), np.int32)
        self.given = given, [given for _, given in wide]
        *packed, self.tail = layout.views(words)
        sources = {True: iter(packed), False: iter([array for array, _ in wide])}
        self.cuts = [next(sources[is_narrow]) for is_narrow in narrow]
        self.index, self.clock = self.tail[:, :rows], self.tail[:, rows:]


class UnitCall:
    """Acts for units of `rows` environments; `wanted` are the values to be computed for each of them.

    Inputs that are the same for all units and turns are packed when the loop begins. The rest, `cuts`, goes
    into `places`, leaf by leaf, with the numbers of the environments and a clock: iteration, total, turns.
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
        self.same = {ref.value for ref in same}
        self.cuts = [ref for ref in self._region.inputs if ref not in same]
        self._types, self._cut_tree = jax.tree.flatten(
            [ref.pick(values[ref.value].type) for ref in self.cuts]
        )
        self.results = Results(self.outputs, values, rows)
        self._rows, self._constants = rows, Constants(same)
        self._narrow = [is_narrow(type_.dtype, (rows, *type_.shape[1:])) for type_ in self._types]
        self._compiled = jax.jit(self._batched)

    def begin(self, store: Store, seed: Any) -> None:
        """Enter the loop: pack what stays the same in all of its turns."""
        self._given = self._constants.pack(store, seed)

    def places(self, units: int, clock: int) -> Places:
        """What to fill for a call of so many units, whose clocks have so many numbers."""
        self._clock = clock
        shapes = [(units, self._rows, *type_.shape[1:]) for type_ in self._types]
        wide = [
            aliased(shape, type_.dtype)
            for shape, type_, narrow in zip(shapes, self._types, self._narrow)
            if not narrow
        ]
        return Places(self._layout(units), wide, self._narrow, self._rows)

    def act(self, places: Places) -> tuple[Any, list[Any]]:
        """What is computed for all units: words for each of them, and what is not packed.

        Wait for it before the places are filled again: the program may read them where they are.
        """
        words, apart = self._compiled(*self._given, *places.given)
        return words, apart

    def _layout(self, units: int) -> Layout:
        """Of the words for so many units: narrow leaves, then the tail. Flags are numbers there."""
        narrow = [type_ for type_, is_narrow in zip(self._types, self._narrow) if is_narrow]
        dtypes = [np.dtype(type_.dtype) for type_ in narrow]
        return Layout(
            (
                *((units, self._rows, *type_.shape[1:]) for type_ in narrow),
                (units, self._rows + self._clock),
            ),
            (*(_INTEGER if dtype.kind == "b" else dtype for dtype in dtypes), _INTEGER),
        )

    def _batched(self, words: Any, large: Any, places: Any, wide: list[Any]) -> Any:
        units = places.size // self._layout(1).size
        same, (seed,) = self._constants.unpack(words, large)
        function = self._region.function()

        def one(packed: list[Any], images: list[Any], tail: Any) -> Any:
            sources = {True: iter(packed), False: iter(images)}
            kinds = zip(self._narrow, self._types)
            cut = [next(sources[narrow]).astype(type_.dtype) for narrow, type_ in kinds]
            known = same | dict(zip(self.cuts, jax.tree.unflatten(self._cut_tree, cut)))
            inputs = tuple(known[ref] for ref in self._region.inputs)
            env_index, now = tail[: self._rows], tail[self._rows :]
            return self.results.pack(function((), inputs, now, seed, env_index))

        *packed, tail = self._layout(units).unpack(places)
        return jax.vmap(one)(packed, wide, tail)


def env_axes(values: dict[int, Value], ref: Ref) -> list[int]:
    """For every leaf under a reference the axis of the environments; below zero: it has none."""
    return jax.tree.leaves(ref.pick(values[ref.value].axes_tree()))
