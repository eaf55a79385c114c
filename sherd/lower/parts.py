"""What a host loop is made of: compiled regions, steps of simulators and messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sherd.graph.ir import Node, Ref, is_ref
from sherd.lower.driver import Driver
from sherd.lower.ports import Port
from sherd.lower.regions import Region

Store = dict[int, Any]  # value id -> concrete value; ids are unique in a graph


@dataclass
class Clock:
    """What every region is told about where in the run it is."""

    seed: Any  # the run's key, as plain numbers
    env_index: Any
    now: np.ndarray  # iteration, total, turns of the enclosing scopes


def fill(tree: Any, store: Store) -> Any:
    """Replace the Refs in a pytree by what they refer to."""
    if isinstance(tree, Ref):
        return tree.pick(store[tree.value])
    return jax.tree.map(lambda r: r.pick(store[r.value]) if is_ref(r) else r, tree, is_leaf=is_ref)


class HostRegion:
    """A compiled region with its place in the store."""

    def __init__(self, region: Region, call: Callable[..., tuple[Any, ...]]) -> None:
        self.region, self._kept, self._call = region, region.kept, call
        self._simplest = -1  # the output with the fewest arrays, once it is known
        self._last: Any = ()

    def run(self, store: Store, clock: Clock) -> None:
        given = tuple(ref.pick(store[ref.value]) for ref in self.region.donated)
        others = tuple(ref.pick(store[ref.value]) for ref in self._kept)
        outputs = self._call(given, others, clock.now, clock.seed, clock.env_index)
        store.update(zip(self.region.outputs, outputs))
        if not outputs:
            return
        if self._simplest < 0:
            counts = [len(jax.tree.leaves(output)) or math.inf for output in outputs]
            self._simplest = counts.index(min(counts))
        self._last = outputs[self._simplest]

    def wait(self) -> None:
        """Until the last call is done: what a program gives is there all at once, so one array tells."""
        jax.block_until_ready(self._last)
        self._last = ()


class HostNode:
    """An environment's step."""

    def __init__(self, node: Node, driver: Driver, action_type: Any) -> None:
        self.node, self.driver = node, driver
        self._state, self._action = node.inputs
        held = jax.tree.map(lambda array: array.dtype, driver.stacked[1].action)
        # The driver keeps actions in the space's own type; an author may have chosen another one.
        self._keeps_action = held == jax.tree.map(lambda leaf: np.dtype(leaf.dtype), action_type)

    def run(self, store: Store, clock: Clock) -> None:
        del clock
        action = fill(self._action, store)
        # One array is what nearly every environment takes: it skips the cost of walking a tree.
        action = np.asarray(action) if isinstance(action, jax.Array) else jax.tree.map(np.asarray, action)
        store[self.node.output] = self.driver.step(self._state.pick(store[self._state.value]), action)

    def stacked(self, leaf: Any) -> Callable[[], Any] | None:
        """How to get a value stacked over all turns without copying, if the driver has it."""
        if not isinstance(leaf, Ref):
            return None
        if leaf.value == self.node.output:
            return lambda: leaf.pick(self.driver.stacked)
        state, action, driver = self._state, self._action, self.driver
        if leaf.value == state.value and leaf.path[: len(state.path)] == state.path:
            rest = Ref(0, leaf.path[len(state.path) :])
            return lambda: rest.pick(driver.entered)
        if leaf == action and self._keeps_action:
            return lambda: driver.stacked[1].action
        return None


class HostSend:
    """A message to another fragment."""

    def __init__(self, node: Node, port: Port) -> None:
        self.node, self._port = node, port
        self._parts = jax.tree.leaves(node.inputs, is_leaf=is_ref)

    def run(self, store: Store, clock: Clock) -> None:
        del clock
        parts = [part.pick(store[part.value]) if is_ref(part) else part for part in self._parts]
        self._port.send(jax.tree.leaves(parts))


class HostReceive:
    """A message from another fragment. Inside a loop it is copied, since the loop may carry it onwards."""

    def __init__(self, node: Node, port: Port, type_: Any, copied: bool) -> None:
        self.node, self.port, self._copied = node, port, copied
        self._treedef = jax.tree.structure(type_)

    def run(self, store: Store, clock: Clock) -> None:
        del clock
        arrays = self.port.receive()
        if self._copied:
            arrays = [np.array(array) for array in arrays]
            self.port.release()
        store[self.node.output] = jax.tree.unflatten(self._treedef, arrays)
