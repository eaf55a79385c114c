"""Loops that the host walks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np

from sherd.graph.ir import Ref, Scope, Stack, is_ref
from sherd.lower.packed import PackedRegion
from sherd.lower.parts import Clock, HostNode, Store


class HostScope:
    """A loop that the host walks because simulators are stepped or messages pass in it."""

    def __init__(self, scope: Scope, parts: list[Any], rollouts: int) -> None:
        self.scope, self.parts = scope, parts
        nodes = [part for part in parts if isinstance(part, HostNode)]
        self._drivers = [part.driver for part in nodes]
        self._packed = [part for part in parts if isinstance(part, PackedRegion)]
        kept: list[HasStacks] = [*nodes, *self._packed]
        self._stacks = [HostStack(stack, scope.trips, rollouts, kept) for stack in scope.stacks]

    def run(self, store: Store, clock: Clock) -> None:
        scope = self.scope
        for driver in self._drivers:
            driver.begin()
        for carry in scope.carries:
            store[carry.inner] = carry.initial.pick(store[carry.initial.value])
        for region in self._packed:
            region.begin(store, clock)
        inner = replace(clock, now=np.append(clock.now, np.int32(0)))
        copied = [stack for stack in self._stacks if stack.copied]
        for turn in range(scope.trips):
            # A fresh array each turn: the last one may still be on its way into a compiled region.
            inner.now = inner.now.copy()
            inner.now[-1] = turn
            store[scope.index] = np.int32(turn)
            for part in self.parts:
                part.run(store, inner)
            for stack in copied:
                stack.keep(store, turn)
            # All results first: one cell's may be what another cell was.
            results = [carry.result.pick(store[carry.result.value]) for carry in scope.carries]
            store.update(zip((carry.inner for carry in scope.carries), results))
        for carry in scope.carries:
            store[carry.outer] = store[carry.inner]
        for stack in self._stacks:
            store[stack.outer] = stack.whole()


class HasStacks(Protocol):
    """What keeps values of all turns itself."""

    def stacked(self, leaf: Any) -> Callable[[], Any] | None:
        """How to get a value stacked over all turns without copying, if it is kept here."""


class HostStack:
    """Stacks values over the turns of a host scope; a driver and a packed region have theirs."""

    def __init__(self, stack: Stack, trips: int, rollouts: int, sources: Sequence[HasStacks]) -> None:
        self.outer, self._trips = stack.outer, trips
        self._leaves, self._treedef = jax.tree.flatten(stack.inner, is_leaf=is_ref)
        found = [
            next((s for source in sources if (s := source.stacked(leaf))), None) for leaf in self._leaves
        ]
        self._there = {slot: source for slot, source in enumerate(found) if source is not None}
        self.copied = [(slot, leaf) for slot, leaf in enumerate(self._leaves) if slot not in self._there]
        # As many sets as the driver has, and for the same reason.
        self._arrays: list[dict[int, Any]] = [{} for _ in range(rollouts + 1)]
        self._flat: list[dict[int, Any]] = [{} for _ in range(rollouts + 1)]
        self._set = 0

    def keep(self, store: Store, turn: int) -> None:
        if turn == 0:
            self._set = (self._set + 1) % len(self._arrays)
        arrays = self._arrays[self._set]
        for slot, leaf in self.copied:
            tree = leaf.pick(store[leaf.value]) if isinstance(leaf, Ref) else leaf
            if slot not in arrays:
                arrays[slot] = jax.tree.map(self._allocate, tree)
                self._flat[self._set][slot] = jax.tree.leaves(arrays[slot])
            for array, row in zip(self._flat[self._set][slot], jax.tree.leaves(tree)):
                array[turn] = row

    def _allocate(self, leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        return np.zeros((self._trips, *leaf.shape), leaf.dtype)

    def whole(self) -> Any:
        arrays = self._arrays[self._set]
        filled = [
            self._there[slot]() if slot in self._there else arrays[slot] for slot in range(len(self._leaves))
        ]
        return jax.tree.unflatten(self._treedef, filled)
