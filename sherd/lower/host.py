"""Lower a graph with host environments to a Python loop around compiled regions.

In each scope that steps simulators the host walks the turns; everything between two steps of the
simulators is one XLA call, and so is everything that does not touch them at all, such as the whole of
epochs by minibatches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from sherd.author.eager import begin_cells, separate
from sherd.author.environments import begin
from sherd.author.keys import run_key
from sherd.author.stage import Op
from sherd.author.types import Episode
from sherd.errors import Source
from sherd.graph.ir import Graph, Node, Ref, Scope, Stack, Value, is_ref, refs_in, uses
from sherd.lower.driver import Driver
from sherd.lower.regions import Item, Region, inputs_of, split
from sherd.lower.summary import metric_names, summarise_episodes, summarise_reports
from sherd.spaces import HostEnv

Store = dict[int, Any]  # value id -> concrete value; ids are unique in a graph


@dataclass
class Clock:
    """What every region is told about where in the run it is."""

    seed: Any
    env_index: Any
    now: np.ndarray  # iteration, total, turns of the enclosing scopes


def fill(tree: Any, store: Store) -> Any:
    """Replace the Refs in a pytree by what they refer to."""
    if isinstance(tree, Ref):
        return tree.pick(store[tree.value])
    return jax.tree.map(lambda r: r.pick(store[r.value]) if is_ref(r) else r, tree, is_leaf=is_ref)


class HostRegion:
    """A compiled region with its place in the store."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._kept = [ref for ref in region.inputs if ref not in region.donated]
        self._call = region.compile()

    def run(self, store: Store, clock: Clock) -> None:
        given = tuple(ref.pick(store[ref.value]) for ref in self.region.donated)
        others = tuple(ref.pick(store[ref.value]) for ref in self._kept)
        outputs = self._call(given, others, clock.now, clock.seed, clock.env_index)
        store.update(zip(self.region.outputs, outputs))


class HostNode:
    """An environment's step."""

    def __init__(self, node: Node, driver: Driver) -> None:
        self.node, self.driver = node, driver
        self._state, self._action = node.inputs

    def run(self, store: Store, clock: Clock) -> None:
        del clock
        action = fill(self._action, store)
        # One array is what nearly every environment takes: it skips the cost of walking a tree.
        action = np.asarray(action) if isinstance(action, jax.Array) else jax.tree.map(np.asarray, action)
        store[self.node.output] = self.driver.step(self._state.pick(store[self._state.value]), action)


class HostScope:
    """A loop that the host walks because simulators are stepped in it."""

    def __init__(self, scope: Scope, parts: list[Any], rollouts: int) -> None:
        self.scope, self.parts = scope, parts
        self._drivers = {part.node.output: part.driver for part in parts if isinstance(part, HostNode)}
        self._stacks = [_HostStack(stack, scope.trips, rollouts, self._drivers) for stack in scope.stacks]

    def run(self, store: Store, clock: Clock) -> None:
        scope = self.scope
        for driver in self._drivers.values():
            driver.begin()
        for carry in scope.carries:
            store[carry.inner] = carry.initial.pick(store[carry.initial.value])
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


class _HostStack:
    """Stacks values over the turns of a host scope; what a driver hands out is stacked already."""

    def __init__(self, stack: Stack, trips: int, rollouts: int, drivers: dict[int, Driver]) -> None:
        self.outer, self._trips, self._drivers = stack.outer, trips, drivers
        self._leaves, self._treedef = jax.tree.flatten(stack.inner, is_leaf=is_ref)
        self.copied = [
            (slot, leaf)
            for slot, leaf in enumerate(self._leaves)
            if not (isinstance(leaf, Ref) and leaf.value in drivers)
        ]
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
            arrays[slot] if slot in arrays else leaf.pick(self._drivers[leaf.value].stacked)
            for slot, leaf in enumerate(self._leaves)
        ]
        return jax.tree.unflatten(self._treedef, filled)


def with_summary(graph: Graph) -> tuple[Graph, int | None]:
    """The graph with one more node, which reduces the reports where they are made; and its value."""
    reports = [stack.inner for stack in graph.reports if stack.channel == "metrics"]
    if not reports:
        return graph, None
    names = metric_names(graph)
    identity = max(graph.values) + 1
    op = Op("summary", "learn", lambda *given: summarise_reports(names, given))
    node = Node("summary", op, tuple(reports), identity, Source("", 0))
    root = replace(graph.root, body=(*graph.root.body, node))
    values = {**graph.values, identity: Value(identity, "summary", (), ())}
    return replace(graph, root=root, values=values), identity


class HostProgram:
    """A graph lowered to host loops and compiled regions, with the state it works on."""

    def __init__(self, graph: Graph, algorithm: Any, env: HostEnv, seed: int, total: int) -> None:
        self.graph, self._summary = with_summary(graph)
        self.env, self.total, self.iteration = env, total, 0
        self._start: Any = None
        self._parts = self._lower(self.graph.root, {carry.result.value for carry in self.graph.root.carries})
        key = run_key(seed)
        index = np.arange(graph.envs, dtype=np.int32)
        self._clock = Clock(jax.device_put(key), jax.device_put(index), np.zeros(2, np.int32))
        self.cells = self._initial(algorithm, key)
        self._episodes = [s.inner for s in self.graph.reports if s.channel == "episode"]

    def _initial(self, algorithm: Any, key: Any) -> dict[str, Any]:
        state: Any = self._start.start()
        bound = algorithm.bind(self.graph.spec)
        blank = begin((), state.obs, self.env.num_envs)
        build = jax.jit(lambda key: begin_cells(bound, blank, key))
        late = {cell.name: cell.build() for cell in self.graph.cells if cell.build is not None}
        return {**separate({**build(key), **late}), "env": state}

    def _lower(self, scope: Scope, wanted: set[int], repeats: int = 1) -> list[Any]:
        """The parts of a scope's body, run `repeats` times an iteration; `wanted` is needed after it."""
        parts: list[Any] = []
        pieces = split(scope.body)
        after = self._needed_after(pieces, scope, wanted)
        for piece, needed in zip(pieces, after):
            if isinstance(piece, list):
                parts.append(self._region(piece, scope, needed))
            elif isinstance(piece, Scope):
                inner = self._lower(piece, set(), repeats * scope.trips)
                parts.append(HostScope(piece, inner, repeats * scope.trips))
            else:
                driver = Driver(self.env, scope.trips, repeats)
                self._start = self._start or driver
                parts.append(HostNode(piece, driver))
        return parts

    def _needed_after(self, pieces: list[Any], scope: Scope, wanted: set[int]) -> list[set[Ref]]:
        ends = {carry.result for carry in scope.carries} | {Ref(value) for value in wanted}
        ends |= {ref for stack in scope.stacks for ref in refs_in(stack.inner)}
        if scope is self.graph.root and self._summary is not None:
            ends.add(Ref(self._summary))
            ends -= {r for s in scope.stacks if s.channel == "metrics" for r in refs_in(s.inner)}
        needed, result = ends, []
        for piece in reversed(pieces):
            result.append(set(needed))
            items: list[Item] = piece if isinstance(piece, list) else [piece]
            needed = needed | {ref for item in items for ref in uses(item)}
        return result[::-1]

    def _region(self, items: list[Item], scope: Scope, needed: set[Ref]) -> HostRegion:
        inputs = inputs_of(items)
        needed_values = {ref.value for ref in needed}
        defined = [v for item in items for v in _defined(item) if v in needed_values]
        donated = []
        if scope is self.graph.root:
            # A cell that this region replaces and nobody reads afterwards gives its memory to the new one.
            for carry in scope.carries:
                dead = carry.inner not in needed_values
                if (
                    Ref(carry.inner) in inputs
                    and carry.result.value in defined
                    and dead
                    and carry.cell != "env"
                ):
                    donated.append(Ref(carry.inner))
        return HostRegion(Region(items, inputs, defined, donated))

    def run(self, count: int) -> list[dict[str, float]]:
        """Make `count` iterations and return the summary of each."""
        return [self._iterate() for _ in range(count)]

    def _iterate(self) -> dict[str, float]:
        store, episodes = self.advance()
        summary = summarise_episodes(episodes, np)
        if self._summary is not None:
            summary |= jax.device_get(store[self._summary])
        return {name: float(value) for name, value in summary.items()}

    def advance(self) -> tuple[Store, tuple[Episode, ...]]:
        """Make one iteration: everything it computed, and the episodes it saw (valid until the next)."""
        store: Store = {carry.inner: self.cells[carry.cell] for carry in self.graph.root.carries}
        store[self.graph.iteration], store[self.graph.total] = np.int32(self.iteration), np.int32(self.total)
        self._clock.now = np.array([self.iteration, self.total], np.int32)
        for part in self._parts:
            if isinstance(part, HostNode):
                part.driver.begin()
            part.run(store, self._clock)
        self.cells = {c.cell: c.result.pick(store[c.result.value]) for c in self.graph.root.carries}
        self._settle()
        self.iteration += 1
        return store, tuple(fill(episode, store) for episode in self._episodes)

    def _settle(self) -> None:
        """Wait until nothing reads this iteration's arrays any more, and let no cell be a view of them."""
        for name, value in self.cells.items():
            if name != "env":
                owned = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, value)
                self.cells[name] = jax.block_until_ready(owned)

    def close(self) -> None:
        """Free the simulators."""
        self.env.close()


def _defined(item: Item) -> list[int]:
    if isinstance(item, Scope):
        return [carry.outer for carry in item.carries] + [stack.outer for stack in item.stacks]
    return [item.output]
