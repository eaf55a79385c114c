"""A reference evaluator of fragments: what the runtime must do, with threads and queues and nothing else.

Every fragment's program runs in a thread of its own; a message is one entry in its crossing's queue. Replicas
are not split: a fragment works on all environments, as if its replicas were batched into one. Each node is
compiled by itself, so the same node gives the same bits wherever it runs and results can be compared exactly.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.author.environments import graph_stepping
from sherd.author.keys import Frame, run_key
from sherd.envs import make_graph
from sherd.graph.ir import Graph, Node, Ref, Scope
from sherd.graph.shapes import same_type
from sherd.lower.interpret import Values, run_node
from sherd.lower.xla import initial_cells
from sherd.policies.partition import Fragments
from sherd.policies.project import Projection, projection

PATIENCE = 10  # looks, a moment apart, at which everybody was waiting: then it is a deadlock


@dataclass
class World:
    """What all programs share: the environment, the seed, and compiled nodes by what they are called with."""

    env_id: str
    algorithm: Any
    envs: int
    total: int = 2
    compiled: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stepping = graph_stepping(make_graph(self.env_id))
        self.seed, self.index = run_key(0), jnp.arange(self.envs)

    def frame(self, iteration: int) -> Frame:
        """The frame of an iteration."""
        return Frame(self.seed, jnp.int32(iteration), jnp.int32(self.total), self.index)

    def begin(self, graph: Graph) -> dict[str, Any]:
        """Every cell of the uncut graph before the first iteration."""
        return initial_cells(graph, self.algorithm, make_graph(self.env_id), self.frame(0))

    def perform(self, node: Node, inputs: Any, frame: Frame) -> Any:
        """Call a node, compiled by itself."""
        leaves, treedef = jax.tree.flatten(inputs)
        constants = tuple(leaf if isinstance(leaf, bool | int | float | str) else None for leaf in leaves)
        key = (node.name, id(node.op.function), treedef, constants)
        arrays = [leaf for leaf, constant in zip(leaves, constants) if constant is None]
        clock = (frame.seed, frame.iteration, frame.total, frame.env_index, frame.turns)
        if key not in self.compiled:
            self.compiled[key] = jax.jit(self._callable(node, treedef, constants))
        return self.compiled[key](arrays, clock)

    def _callable(self, node: Node, treedef: Any, constants: tuple[Any, ...]) -> Any:
        def call(arrays: list[Any], clock: Any) -> Any:
            given = iter(arrays)
            inputs = treedef.unflatten([next(given) if c is None else c for c in constants])
            bare = Node(node.name, node.op, tuple(map(Ref, range(len(inputs)))), -1, node.source)
            values = Values({Ref(number): one for number, one in enumerate(inputs)})
            return run_node(bare, values, Frame(*clock), self.stepping)

        return call


@dataclass
class Mail:
    """One queue for each crossing, and how many messages went through it."""

    names: list[str]
    running: int  # fragments that have not ended

    def __post_init__(self) -> None:
        self.queues = {name: queue.Queue() for name in self.names}
        self.counts = dict.fromkeys(self.names, 0)
        self.awaited: set[str] = set()
        self.failed = threading.Event()

    def send(self, name: str, message: Any) -> None:
        """Never waits."""
        self.counts[name] += 1
        self.queues[name].put(message)

    def receive(self, name: str) -> Any:
        """Wait for the next message, unless nobody is left who could send it."""
        self.awaited.add(name)
        try:
            return self._next(name)
        finally:
            self.awaited.discard(name)

    def _next(self, name: str) -> Any:
        stuck = 0
        while stuck < PATIENCE:
            try:
                return self.queues[name].get(timeout=0.05)
            except queue.Empty:
                stuck = stuck + 1 if self._all_wait() else 0
            if self.failed.is_set():
                raise RuntimeError(f"{name}: another fragment failed")
        raise RuntimeError(f"{name} never arrives: a deadlock")

    def _all_wait(self) -> bool:
        empty = [name for name in list(self.awaited) if self.queues[name].empty()]
        return len(empty) == self.running


@dataclass
class Player:
    """Runs one graph, by itself or as a fragment with a mailbox."""

    world: World
    graph: Graph
    cells: dict[str, Any]
    mail: Mail | None = None
    reports: list[tuple[str, Any]] = field(default_factory=list)

    def iterate(self, iteration: int) -> None:
        """One training iteration."""
        graph, frame = self.graph, self.world.frame(iteration)
        values = Values({Ref(carry.inner): self.cells[carry.cell] for carry in graph.root.carries})
        values[graph.iteration], values[graph.total] = frame.iteration, frame.total
        self._items(graph.root, values, frame)
        self.cells = {carry.cell: values[carry.result] for carry in graph.root.carries}
        self.reports += [(stack.channel, values.fill(stack.inner)) for stack in graph.reports]

    def _items(self, scope: Scope, values: Values, frame: Frame) -> None:
        for item in scope.body:
            if isinstance(item, Scope):
                self._scope(item, values, frame)
            elif item.role == "send":
                self.mail.send(item.name.removeprefix("send "), values.fill(item.inputs))
                values[item.output] = ()
            elif item.role == "receive":
                values[item.output] = self._received(item)
            else:
                values[item.output] = self.world.perform(item, values.fill(item.inputs), frame)

    def _received(self, node: Node) -> Any:
        message = self.mail.receive(node.name.removeprefix("receive "))
        expected = self.graph.values[node.output].type
        if not same_type(expected, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), message)):
            raise RuntimeError(f"{node.name}: {jax.tree.map(jnp.shape, message)} instead of {expected}")
        return message

    def _scope(self, scope: Scope, values: Values, frame: Frame) -> None:
        carried = [values[carry.initial] for carry in scope.carries]
        kept: list[list[Any]] = [[] for _ in scope.stacks]
        for turn in range(scope.trips):
            inside = values.copy()
            inside[scope.index] = jnp.int32(turn)
            for carry, concrete in zip(scope.carries, carried):
                inside[carry.inner] = concrete
            self._items(scope, inside, frame.within(jnp.int32(turn)))
            carried = [inside[carry.result] for carry in scope.carries]
            for rows, stack in zip(kept, scope.stacks):
                rows.append(inside.fill(stack.inner))
        for carry, concrete in zip(scope.carries, carried):
            values[carry.outer] = concrete
        for rows, stack in zip(kept, scope.stacks):
            values[stack.outer] = jax.tree.map(lambda *turns: np.stack(turns), *rows)


@dataclass
class Outcome:
    """What a run leaves behind. `told` is what was reported on each channel, as sorted lines of numbers."""

    cells: dict[str, Any]
    told: list[tuple[str, tuple[bytes, ...]]]
    messages: dict[str, int] = field(default_factory=dict)


def run_whole(world: World, graph: Graph, iterations: int = 2) -> Outcome:
    """Run the uncut graph."""
    player = Player(world, graph, world.begin(graph))
    for iteration in range(iterations):
        player.iterate(iteration)
    return Outcome(player.cells, _told([player]))


def run_fragments(world: World, cut: Fragments, iterations: int = 2) -> Outcome:
    """Run every fragment in a thread; the cells are those of their owners, mirrors must agree with them."""
    first = world.begin(cut.graph)
    mail = Mail([crossing.name for crossing in cut.crossings], running=len(cut.fragments))
    parts = [projection(cut, fragment.name) for fragment in cut.fragments]
    players = [Player(world, one.graph, _held(one, first), mail) for one in parts]
    failures: list[BaseException] = []

    def work(player: Player) -> None:
        try:
            for iteration in range(iterations):
                player.iterate(iteration)
        except BaseException as error:
            failures.append(error)
            mail.failed.set()
        finally:
            mail.running -= 1

    threads = [threading.Thread(target=work, args=(player,)) for player in players]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    left = {name: waiting.qsize() for name, waiting in mail.queues.items() if waiting.qsize()}
    if left:
        raise RuntimeError(f"sent and never received: {left}")
    return Outcome(_owned(parts, players), _told(players), mail.counts)


def _held(part: Projection, cells: dict[str, Any]) -> dict[str, Any]:
    return {held.name: Ref(0, held.path).pick(cells[held.cell]) for held in part.held}


def _owned(parts: list[Projection], players: list[Player]) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    pairs = [(held, player.cells[held.name]) for part, player in zip(parts, players) for held in part.held]
    for held, concrete in pairs:
        if held.owned:
            cells[held.cell] = concrete
    for held, concrete in pairs:
        require_same(Ref(0, held.path).pick(cells[held.cell]), concrete, f"the mirror {held.name}")
    return cells


def _told(players: list[Player]) -> list[tuple[str, tuple[bytes, ...]]]:
    told = [(channel, tree) for player in players for channel, tree in player.reports]
    return sorted((c, tuple(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(t))) for c, t in told)


def require_same(one: Any, other: Any, what: str) -> None:
    """Two trees are equal to the bit."""
    a, b = jax.tree.flatten(one), jax.tree.flatten(other)
    same = a[1] == b[1] and all(_bits(x) == _bits(y) for x, y in zip(a[0], b[0]))
    if not same:
        raise AssertionError(f"{what} differs")


def _bits(leaf: Any) -> tuple[Any, bytes]:
    array = np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
    return array.shape, array.tobytes()
