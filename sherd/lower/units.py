"""Dynamic batches: act for whichever simulators have sent observations, instead of waiting for all of them.

A unit is a group of environments that is stepped together somewhere else. In a loop in which a fragment only
acts, units need not be at the same turn: each has its own, and keys depend on the turn, not on who is batched
with whom. So every call takes the units that are ready, and the result is that of the loop in lockstep.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np

from sherd.graph.ir import Node, Ref, Scope, Value, is_ref, refs_in
from sherd.lower.parts import Clock, Store, fill
from sherd.lower.regions import Item, inputs_of, roles_in
from sherd.lower.unit_call import Places, UnitCall, env_axes

Units = list[tuple[int, int]]


class UnitSender(Protocol):
    """The sending end of a crossing whose rows go to several units."""

    units: Units

    def send_unit(self, unit: int, arrays: list[Any]) -> None:
        """A message to one unit."""


class UnitReceiver(Protocol):
    """The receiving end of a crossing whose rows come from several units."""

    units: Units

    def ready(self) -> list[int]:
        """Wait until at least one unit has sent something: all that have."""

    def take_unit(self, unit: int, places: list[Any]) -> None:
        """Copy what a unit has sent to where it belongs."""


@dataclass
class UnitLoop:
    """A scope that can be run unit by unit."""

    scope: Scope
    items: list[Item]
    send: Node
    receive: Node
    sender: UnitSender
    receiver: UnitReceiver
    refreshed: dict[int, int] = field(default_factory=dict)  # leaf of the message -> leaf among the carries


def unit_loop(scope: Scope, values: dict[int, Value], ports: Any) -> UnitLoop | None:
    """The loop, if all that it does is to act, send and receive; None otherwise."""
    items: list[Item] = [i for i in scope.body if roles_in(i) <= {"act"}]
    messages = [i for i in scope.body if isinstance(i, Node) and i.role in ("send", "receive")]
    if len(items) + len(messages) != len(scope.body) or [m.role for m in messages] != ["send", "receive"]:
        return None
    send, receive = messages
    sender, receiver = (ports[node.name.split(" ", 1)[1]] for node in messages)
    units = getattr(sender, "units", [])
    if len(units) < 2 or getattr(receiver, "units", None) != units or len({h - w for w, h in units}) > 1:
        return None
    loop = UnitLoop(scope, items, send, receive, sender, receiver)
    return loop if _splits(loop, values) else None


def _splits(loop: UnitLoop, values: dict[int, Value]) -> bool:
    """Whether all that the loop carries, keeps and exchanges has its rows first; finds what is refreshed."""
    scope, received = loop.scope, loop.receive.output
    used = [ref for item in loop.items for ref in inputs_of([item])] + refs_in(loop.send.inputs)
    kept = [ref for stack in scope.stacks for ref in refs_in(stack.inner)]
    if any(ref.value in (received, scope.index) for ref in (*used, *kept)):
        return False
    inner = {carry.inner for carry in scope.carries}
    if any(axis > 0 for ref in used if ref.value not in inner for axis in env_axes(values, ref)):
        return False
    made = {node.output for node in loop.items if isinstance(node, Node)}
    rows = [Ref(value) for value in inner] + [
        r for r in (*kept, *refs_in(loop.send.inputs)) if r.value in made
    ]
    if any(axis != 0 for ref in rows for axis in env_axes(values, ref)) or any(
        ref.value not in inner | made for ref in kept
    ):
        return False
    leaf = 0
    for carry in scope.carries:
        count = len(values[carry.inner].env_axes)
        if carry.result.value == received:
            first = _position(values[received], carry.result)
            loop.refreshed |= {first + i: leaf + i for i in range(count)}
        leaf += count
    return len(loop.refreshed) == len(values[received].env_axes)


def _position(value: Value, ref: Ref) -> int:
    """The number of the first leaf under a reference among the leaves of its value."""
    numbers = jax.tree.unflatten(jax.tree.structure(value.type), list(range(len(value.env_axes))))
    return int(jax.tree.leaves(ref.pick(numbers))[0])


class HostUnits:
    """Runs such a loop."""

    def __init__(self, loop: UnitLoop, values: dict[int, Value], rollouts: int) -> None:
        self.loop, self._values = loop, values
        self._count, (low, high) = len(loop.receiver.units), loop.receiver.units[0]
        self._rows, self._trips = high - low, loop.scope.trips
        results = [c.result for c in loop.scope.carries if c.result.value != loop.receive.output]
        stacked = [ref for stack in loop.scope.stacks for ref in refs_in(stack.inner)]
        wanted = {ref.value for ref in (*results, *stacked, *refs_in(loop.send.inputs))}
        self._inner = {carry.inner for carry in loop.scope.carries}
        self._call = UnitCall(loop.items, wanted, self._inner, values, self._rows)
        self._sizes = sorted({min(2**power, self._count) for power in range(10)} | {self._count})
        if self._rows == 1:
            self._sizes = [size for size in self._sizes if size > 1]  # one row alone rounds differently
        self._places: dict[int, Places] = {}  # by the number of units
        self._stacks: list[list[list[np.ndarray]] | None] = [None] * (rollouts + 1)
        self._turn_of_sets = 0

    def run(self, store: Store, clock: Clock) -> None:
        """All turns of all units."""
        scope = self.loop.scope
        carried = [jax.tree.map(np.array, fill(carry.initial, store)) for carry in scope.carries]
        flat = [leaf for tree in carried for leaf in jax.tree.leaves(tree)]
        # Carried values change in place: parts of them that are used now are seen as they are then.
        state = {c.inner: tree for c, tree in zip(scope.carries, carried)}
        stacks = self._arrays()
        self._call.begin(store, clock.seed)
        index = np.asarray(clock.env_index).reshape(self._count, self._rows)
        turns, ready, left = np.zeros(self._count, np.int32), list(range(self._count)), self._count
        while left:
            if ready:
                outputs = self._act(ready, store, state, turns, clock, index)
                self._keep(ready, turns, state, outputs, stacks)
            ready = []
            for unit in self.loop.receiver.ready():
                low, high = self.loop.receiver.units[unit]
                places = [None] * len(self.loop.refreshed)
                for number, leaf in self.loop.refreshed.items():
                    places[number] = flat[leaf][low:high]
                self.loop.receiver.take_unit(unit, places)
                turns[unit] += 1
                if turns[unit] == self._trips:
                    left -= 1
                else:
                    ready.append(unit)
        for carry, tree in zip(scope.carries, carried):
            store[carry.outer] = tree
        for stack, leaves in zip(scope.stacks, stacks):
            store[stack.outer] = jax.tree.unflatten(self._treedef(stack.inner), leaves)

    def _act(
        self, ready: list[int], store: Store, state: Store, turns: Any, clock: Clock, index: Any
    ) -> dict[int, Any]:
        """One call for all that are ready, padded to one of a few sizes so that few programs are compiled."""
        size = next(size for size in self._sizes if size >= len(ready))
        units = np.array(ready + [ready[-1]] * (size - len(ready)))
        if size not in self._places:
            self._places[size] = self._call.places(size, len(clock.now) + 1)
        places = self._places[size]
        cut = [
            leaf
            for ref in self._call.cuts
            for leaf in self._cut(ref, state if ref.value in self._inner else store, units)
        ]
        for place, leaf in zip(places.cuts, cut):
            place[...] = leaf
        places.index[...] = index[units]
        places.clock[:, :-1], places.clock[:, -1] = clock.now, turns[units]
        words, apart = self._call.act(places)
        leaves = self._call.results.views(np.asarray(words))
        outputs = self._call.results.joined(leaves, [np.asarray(array) for array in apart])
        return dict(zip(self._call.outputs, outputs))

    def _cut(self, ref: Ref, values: Store, units: Any) -> list[Any]:
        def rows(leaf: Any) -> Any:
            leaf = np.asarray(leaf).reshape(self._count, self._rows, *leaf.shape[1:])
            return leaf[units]

        return [rows(leaf) for leaf in jax.tree.leaves(ref.pick(values[ref.value]))]

    def _arrays(self) -> list[list[np.ndarray]]:
        """The next set of arrays to stack into; the last one may still be in use."""
        self._turn_of_sets = (self._turn_of_sets + 1) % len(self._stacks)
        found = self._stacks[self._turn_of_sets]
        if found is None:
            found = [
                [self._blank(leaf) for ref in refs_in(s.inner) for leaf in self._types(ref)]
                for s in self.loop.scope.stacks
            ]
            self._stacks[self._turn_of_sets] = found
        return found

    def _types(self, ref: Ref) -> list[Any]:
        return jax.tree.leaves(ref.pick(self._values[ref.value].type))

    def _blank(self, leaf: Any) -> np.ndarray:
        return np.zeros((self._trips, self._count * self._rows, *leaf.shape[1:]), leaf.dtype)

    def _treedef(self, inner: Any) -> Any:
        types = jax.tree.map(
            lambda leaf: leaf.pick(self._values[leaf.value].type) if is_ref(leaf) else leaf,
            inner,
            is_leaf=is_ref,
        )
        return jax.tree.structure(types)

    def _keep(
        self,
        ready: list[int],
        turns: Any,
        state: Store,
        outputs: dict[int, Any],
        stacks: list[list[np.ndarray]],
    ) -> None:
        """Send the actions, then stack and carry what was computed."""
        loop = self.loop
        actions = jax.tree.leaves(fill(loop.send.inputs, outputs))
        for number, unit in enumerate(ready):
            loop.sender.send_unit(unit, [leaf[number] for leaf in actions])
        for stack, arrays in zip(loop.scope.stacks, stacks):
            leaves = [leaf for ref in refs_in(stack.inner) for leaf in self._now(ref, state, outputs)]
            for array, (leaf, batched) in zip(arrays, leaves):
                for number, unit in enumerate(ready):
                    low, high = loop.receiver.units[unit]
                    array[turns[unit], low:high] = leaf[number] if batched else leaf[low:high]
        for carry in loop.scope.carries:
            if carry.result.value in outputs:
                new = jax.tree.leaves(carry.result.pick(outputs[carry.result.value]))
                for old, leaf in zip(jax.tree.leaves(state[carry.inner]), new):
                    for number, unit in enumerate(ready):
                        low, high = loop.receiver.units[unit]
                        old[low:high] = leaf[number]

    def _now(self, ref: Ref, state: Store, outputs: dict[int, Any]) -> list[tuple[Any, bool]]:
        batched = ref.value in outputs
        tree = ref.pick(outputs[ref.value] if batched else state[ref.value])
        return [(leaf, batched) for leaf in jax.tree.leaves(tree)]
