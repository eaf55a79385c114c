"""Lower a graph to a Python loop around compiled regions.

In each scope that steps simulators or exchanges messages the host walks the turns; everything between is one
XLA call, and so is everything that does none of both, such as the whole of epochs by minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.author import ring
from sherd.author.keys import run_key
from sherd.author.replay import MEMORY
from sherd.author.stage import Op
from sherd.author.types import EnvironmentStep, Episode
from sherd.errors import Source
from sherd.graph.ir import Graph, Node, Ref, Scope, Value, refs_in, uses
from sherd.lower.ahead import may_run_ahead
from sherd.lower.draws import HostDraws, drawn_first
from sherd.lower.driver import Driver
from sherd.lower.memory import Allocate, HostGather, HostStore, moves_memory
from sherd.lower.packed import PackedRegion, only_acts
from sherd.lower.parts import Clock, HostNode, HostReceive, HostRegion, HostSend, Store, fill
from sherd.lower.ports import Port
from sherd.lower.regions import (
    MESSAGES,
    NO_ENVIRONMENT,
    Item,
    Region,
    delay_schedules,
    inputs_of,
    overlap,
    reduces,
    roles_in,
    split,
)
from sherd.lower.rows import HostRows, goes_by_rows
from sherd.lower.schedules import HostSchedules, follows_from_counters
from sherd.lower.scopes import HostScope
from sherd.lower.share import Share
from sherd.lower.spmd import Spmd
from sherd.lower.summary import metric_names, summarise_episodes, summarise_reports
from sherd.lower.units import HostUnits, UnitLoop, unit_loop
from sherd.spaces import HostEnv


def with_summary(graph: Graph) -> tuple[Graph, int | None, list[str]]:
    """The graph with one more node, which reduces the reports where they are made; its value, and its names.

    The value is one vector: fetching a number for each name would take longer than a small update.
    """
    reports = [stack.inner for stack in graph.reports if stack.channel == "metrics"]
    names = metric_names(graph)
    shown = [name for mine in names for name in mine.values()]
    if not shown:
        return graph, None, []
    identity = max(graph.values) + 1
    op = Op("summary", "learn", lambda *given: jnp.stack([*summarise_reports(names, given).values()]))
    node = Node("summary", op, tuple(reports), identity, Source("", 0))
    # Before the messages that end an iteration: it belongs to the region that computes what it reduces.
    body = graph.root.body
    at = next((i + 1 for i in reversed(range(len(body))) if not roles_in(body[i]) <= set(MESSAGES)), 0)
    root = replace(graph.root, body=(*body[:at], node, *body[at:]))
    type_ = jax.ShapeDtypeStruct((len(shown),), np.float32)
    values = {**graph.values, identity: Value(identity, "summary", type_, (None,))}
    return replace(graph, root=root, values=values), identity, shown


@dataclass(frozen=True)
class Setting:
    """Where a program runs: its environments, and how it talks to the rest of the run.

    Either `env` holds host simulators, or `stepping` steps graph environments, or neither is here.
    """

    seed: int
    total: int
    share: Share
    env: HostEnv | None = None
    stepping: EnvironmentStep = NO_ENVIRONMENT
    ports: Mapping[str, Port] = field(default_factory=dict)
    spmd: Spmd | None = None
    memory: Allocate | None = None  # how replay memory of the host is made; None: it is part of the program
    # Who is told that rows have begun the next rollout with this one's parameters; None: they must not.
    went_ahead: Callable[[], None] | None = None


class HostProgram:
    """A graph lowered to host loops and compiled regions, with the state it works on.

    `cells` is to be set before the first iteration (`begin_cells` of share.py).
    """

    def __init__(self, graph: Graph, setting: Setting) -> None:
        self.graph, self._summary, self._shown = with_summary(graph)
        self.setting, self.total, self.iteration = setting, setting.total, 0
        self._host_roles = {*MESSAGES, *(("env",) if setting.env is not None else ())}
        self._drivers: list[Driver] = []
        self._taken: list[Port] = []
        self._ahead: HostRows | None = None  # whose rows may be ahead of the rest
        self._parts = self._lower(self.graph.root, {carry.result.value for carry in self.graph.root.carries})
        index = jax.device_put(setting.share.index())
        seed = jax.device_put(jax.random.key_data(run_key(setting.seed)))
        self._clock = Clock(seed, index, np.zeros(2, np.int32))
        self.cells: dict[str, Any] = {}
        simulators, memory = setting.env is not None, setting.memory is not None
        self._regions = [part for part in self._parts if isinstance(part, HostRegion)]
        computed = {output for part in self._regions for output in part.region.outputs}
        carries = self.graph.root.carries
        # What a region gives is an array of JAX's and no view. To look at all of them after each of DQN's
        # iterations of 1.3 ms took 21 us or more.
        self._settled = {carry.cell for carry in carries if carry.result.value in computed}
        self._settled |= {*(("env",) if simulators else ()), *((MEMORY,) if memory else ())}
        self._episodes = [s.inner for s in self.graph.reports if s.channel == "episode"]

    def reset(self) -> Any:
        """Reset the host simulators: their first state."""
        return self._drivers[0].start()

    def _lower(self, scope: Scope, wanted: set[int], repeats: int = 1) -> list[Any]:
        """The parts of a scope's body, run `repeats` times an iteration; `wanted` is needed after it."""
        parts: list[Any] = []
        spmd, counters = self.setting.spmd is not None, {self.graph.iteration, self.graph.total}
        body = scope.body if spmd else delay_schedules(scope.body, counters)
        pieces = split(body, self._on_host, spmd)
        after = self._needed_after(pieces, scope, wanted)
        for piece, needed in zip(pieces, after):
            if isinstance(piece, list):
                parts.append(self._region(piece, scope, needed, repeats))
            elif isinstance(piece, Scope) and (loop := self._unit_loop(piece)):
                parts.append(HostUnits(loop, self.graph.values, repeats * scope.trips))
            elif isinstance(piece, Scope) and (rows := self._rows(piece, repeats * scope.trips)):
                parts.append(rows)
            elif isinstance(piece, Scope) and (draws := self._draws(piece)):
                parts.append(draws)
            elif isinstance(piece, Scope):
                inner = self._lower(piece, set(), repeats * scope.trips)
                parts.append(HostScope(piece, inner, repeats * scope.trips))
            else:
                parts.append(self._node(piece, scope, repeats))
        return parts

    def _on_host(self, node: Node) -> bool:
        kept = self.setting.memory is not None and moves_memory(node)
        return kept or node.role in self._host_roles

    def _unit_loop(self, scope: Scope) -> UnitLoop | None:
        return unit_loop(scope, self.graph.values, self.setting.ports) if self.setting.ports else None

    def _rows(self, scope: Scope, repeats: int) -> HostRows | None:
        step = scope.body[-1]
        if not isinstance(step, Node) or not goes_by_rows(scope, self.setting.env):
            return None
        drivers = list(self._drivers)
        ahead = self.setting.went_ahead if may_run_ahead(self.graph, scope) else None
        node = self._node(step, scope, repeats, spare=1 if ahead else 0)
        rows = HostRows(scope, node, self.graph.values, repeats, ahead)
        if not rows.fits:
            self._drivers = drivers
            return None
        self._ahead = rows if ahead else None
        return rows

    def _draws(self, scope: Scope) -> HostDraws | None:
        first = max(self.graph.values) + 1
        if self.setting.memory is None or (found := drawn_first(scope, first)) is None:
            return None
        drawing, gathers = found
        region = Region([drawing], inputs_of([drawing]), _defined(drawing), [])
        return HostDraws(scope, gathers, HostRegion(region, region.compile()), first)

    def _node(self, node: Node, scope: Scope, repeats: int, spare: int = 0) -> Any:
        if node.role == "env":
            if self.setting.env is None:
                raise RuntimeError("no simulators here")
            driver = Driver(self.setting.env, scope.trips, repeats, spare)
            self._drivers.append(driver)
            action = jax.tree.map(self._type, node.inputs[1], is_leaf=lambda leaf: isinstance(leaf, Ref))
            return HostNode(node, driver, action)
        if moves_memory(node):
            return (HostStore if node.op.function.func is ring.store else HostGather)(node, fill)  # type: ignore[attr-defined]
        port = self.setting.ports[node.name.split(" ", 1)[1]]
        if node.role == "send":
            return HostSend(node, port)
        in_loop = scope is not self.graph.root
        if not in_loop:
            self._taken.append(port)
        return HostReceive(node, port, self.graph.values[node.output].type, copied=in_loop)

    def _type(self, leaf: Any) -> Any:
        return leaf.pick(self.graph.values[leaf.value].type) if isinstance(leaf, Ref) else np.asarray(leaf)

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

    def _region(
        self, items: list[Item], scope: Scope, needed: set[Ref], repeats: int
    ) -> HostRegion | PackedRegion | HostSchedules:
        inputs = inputs_of(items)
        needed_values = {ref.value for ref in needed}
        defined = [v for item in items for v in _defined(item) if v in needed_values]
        donated = []
        if scope is self.graph.root and self.setting.went_ahead is None:  # rows that are ahead still read it
            # A cell that this region replaces and nobody reads afterwards gives its memory to the new one.
            for carry in scope.carries:
                dead = carry.inner not in needed_values
                # Two cells may be set to one value, as a target to the parameters: then they share memory.
                alone = not any(o is not carry and overlap(o.result, carry.result) for o in scope.carries)
                if (
                    Ref(carry.inner) in inputs
                    and carry.result.value in defined
                    and dead
                    and alone
                    and not (carry.cell == "env" and self.setting.env is not None)
                ):
                    donated.append(Ref(carry.inner))
        region = Region(items, inputs, defined, donated, self.setting.stepping)
        if scope is not self.graph.root and only_acts(region):
            return PackedRegion(region, scope, self.graph.values, self.setting.share.count, repeats)
        spmd, counters = self.setting.spmd, (self.graph.iteration, self.graph.total)
        if scope is self.graph.root and follows_from_counters(region, counters, self.graph.values):
            return HostSchedules(region, counters)
        together = spmd is not None and reduces(items)
        call = spmd.compile(region, self.graph.values) if spmd and together else region.compile()
        return HostRegion(region, call)

    def run(self, count: int) -> list[dict[str, float]]:
        """Make `count` iterations and return the summary of each."""
        return [self.iterate() for _ in range(count)]

    def iterate(self) -> dict[str, float]:
        """Make one iteration and sum it up."""
        store, episodes = self.advance()
        summary = summarise_episodes(jax.tree.map(np.asarray, episodes), np) if episodes else {}
        if self._summary is not None:
            summary |= dict(zip(self._shown, np.asarray(store[self._summary]).tolist()))
        self.release()
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
            if self._ahead is not None:
                self._ahead.go_on()
        self.cells = {c.cell: c.result.pick(store[c.result.value]) for c in self.graph.root.carries}
        self._settle()
        self.iteration += 1
        return store, tuple(fill(episode, store) for episode in self._episodes)

    def _settle(self) -> None:
        """Wait until nothing reads this iteration's arrays any more, and let no cell be a view of them."""
        for region in self._regions:
            region.wait()
        cells = {name: value for name, value in self.cells.items() if name not in self._settled}
        if not cells:
            return
        leaves, treedef = jax.tree.flatten(cells)
        jax.block_until_ready(leaves)
        if any(isinstance(leaf, np.ndarray) for leaf in leaves):
            owned = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
            self.cells |= jax.tree.unflatten(treedef, owned)

    def release(self) -> None:
        """Give back the messages that the last iteration worked on."""
        for port in self._taken:
            port.release()

    def close(self) -> None:
        """Free the simulators."""
        if self.setting.env is not None:
            self.setting.env.close()


def _defined(item: Item) -> list[int]:
    if isinstance(item, Scope):
        return [carry.outer for carry in item.carries] + [stack.outer for stack in item.stacks]
    return [item.output]
