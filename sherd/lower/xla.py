"""Lower a graph whose every node is in-graph to one XLA program that makes many iterations.

Over several devices the same program is replicated: each device holds some of the environments, and the
reductions that authors use (and the gradients) see all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sherd.author import reduce
from sherd.author.eager import begin_cells, separate
from sherd.author.environments import graph_begin, graph_stepping
from sherd.author.keys import Frame, run_key
from sherd.author.types import EnvironmentStep
from sherd.errors import UsageError
from sherd.graph.ir import Graph, Ref
from sherd.lower.interpret import Values, run_items
from sherd.lower.spmd import AXIS
from sherd.lower.summary import Summary, across_replicas, metric_names, summarise_episodes, summarise_reports

LONGEST_CALL = 256  # iterations that one call may make; their summaries are kept in arrays of this length


def run_once(
    graph: Graph, stepping: EnvironmentStep, cells: dict[str, Any], frame: Frame
) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """One iteration: cells in; cells and what was emitted on each channel out."""
    values = Values({Ref(carry.inner): cells[carry.cell] for carry in graph.root.carries})
    values[graph.iteration], values[graph.total] = frame.iteration, frame.total
    run_items(graph.root.body, values, frame, stepping)
    after = {carry.cell: values[carry.result] for carry in graph.root.carries}
    emitted: dict[str, tuple[Any, ...]] = {"metrics": (), "episode": ()}
    for stack in graph.reports:
        emitted[stack.channel] += (values.fill(stack.inner),)
    return after, emitted


def iterate(
    graph: Graph, stepping: EnvironmentStep, cells: dict[str, Any], frame: Frame
) -> tuple[Any, Summary]:
    """One training iteration: cells in, cells and a summary out."""
    after, emitted = run_once(graph, stepping, cells, frame)
    metrics = summarise_reports(metric_names(graph), emitted["metrics"])
    return after, {**metrics, **summarise_episodes(emitted["episode"])}


def initial_cells(graph: Graph, algorithm: Any, env: Any, frame: Frame) -> dict[str, Any]:
    """Every cell's first value, for a graph environment."""
    state = graph_begin(env, frame.env_keys("reset"))
    cells = begin_cells(algorithm.bind(graph.spec), state, frame.seed)
    late = {cell.name: cell.build(graph.envs) for cell in graph.cells if cell.build is not None}
    return {**cells, **late}


def mesh_of_devices(count: int, envs: int) -> Mesh | None:
    """A mesh over some of this process' devices, to spread environments over; None for one."""
    if count == 1:
        return None
    available = jax.local_devices()
    if len(available) < count or envs % count:
        raise UsageError(
            f"{envs} environments cannot be spread over {count} devices "
            f"({len(available)} available)\n  fix: use --envs divisible by the number of devices"
        )
    return Mesh(np.array(available[:count]), (AXIS,))


@dataclass
class XlaProgram:
    """A graph compiled to one program, with the state it works on."""

    graph: Graph
    algorithm: Any
    env: Any
    seed: int
    total: int
    mesh: Mesh | None = None
    longest_call: int = LONGEST_CALL

    def __post_init__(self) -> None:
        self.iteration = 0
        self._shown = [name for mine in metric_names(self.graph) for name in mine.values()]
        self.frame = Frame(run_key(self.seed), 0, self.total, jnp.arange(self.graph.envs))
        self.cells = self._initial()
        self._call = self._compile()
        self._place: tuple[Any, Any] = (self.frame.seed, self.frame.env_index)
        if self.mesh is not None:
            seed = jax.random.key_data(self.frame.seed)  # a typed key cannot be spread over processes
            self._place = (self._spread(seed, P()), self._spread(self.frame.env_index, P(AXIS)))

    def _initial(self) -> dict[str, Any]:
        @jax.jit
        def build(seed: Any, index: Any) -> dict[str, Any]:
            return initial_cells(self.graph, self.algorithm, self.env, Frame(seed, 0, self.total, index))

        cells: dict[str, Any] = separate(build(self.frame.seed, self.frame.env_index))
        if self.mesh is None:
            return cells
        return jax.tree.map(self._spread, cells, self._specs(cells))

    def _spread(self, leaf: Any, spec: P) -> Any:
        """An array over the mesh, of which every process knows the whole."""
        if self.mesh is None:
            raise RuntimeError("there is no mesh to spread over")
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(
            whole.shape, NamedSharding(self.mesh, spec), lambda index: whole[index]
        )

    def _specs(self, cells: dict[str, Any]) -> dict[str, Any]:
        """Which axis of every leaf is spread over the devices."""
        specs = {}
        for cell in self.graph.cells:
            leaves, treedef = jax.tree.flatten(cells[cell.name])
            # The traced environment cell leaves the simulator out; all of it is per environment.
            axes = (0,) * len(leaves) if cell.name == "env" else cell.env_axes
            parts = [P() if axis is None else P(*(None,) * axis, AXIS) for axis in axes]
            specs[cell.name] = jax.tree.unflatten(treedef, parts)
        return specs

    def _compile(self) -> Any:
        stepping = graph_stepping(self.env)

        def one(cells: Any, iteration: Any, total: Any, seed: Any, index: Any) -> tuple[Any, Summary]:
            after, summary = iterate(self.graph, stepping, cells, Frame(seed, iteration, total, index))
            return after, across_replicas(summary)

        def many(
            cells: Any, start: Any, count: Any, total: Any, seed: Any, index: Any
        ) -> tuple[Any, Summary]:
            shapes = jax.eval_shape(one, cells, start, total, seed, index)[1]
            blank = jax.tree.map(lambda s: jnp.zeros((self.longest_call, *s.shape), s.dtype), shapes)

            def body(turn: Any, carried: tuple[Any, Summary]) -> tuple[Any, Summary]:
                cells, kept = carried
                after, summary = one(cells, start + turn, total, seed, index)
                return after, jax.tree.map(lambda row, new: row.at[turn].set(new), kept, summary)

            return jax.lax.fori_loop(0, count, body, (cells, blank))

        if self.mesh is None:
            return jax.jit(many, donate_argnums=0)

        def replicated(
            cells: Any, start: Any, count: Any, total: Any, seed: Any, index: Any
        ) -> tuple[Any, Summary]:
            with reduce.replicas(AXIS):
                return many(cells, start, count, total, jax.random.wrap_key_data(seed), index)

        specs = self._specs(self.cells)
        sharded = jax.shard_map(
            replicated,
            mesh=self.mesh,
            in_specs=(specs, P(), P(), P(), P(), P(AXIS)),
            out_specs=(specs, P()),
            check_vma=False,
        )
        return jax.jit(sharded, donate_argnums=0)

    def run(self, count: int) -> list[dict[str, float]]:
        """Make `count` iterations and return the summary of each."""
        rows: list[dict[str, float]] = []
        while count:
            some = min(count, self.longest_call)
            args = (np.int32(self.iteration), np.int32(some), np.int32(self.total))
            self.cells, kept = self._call(self.cells, *args, *self._place)
            fetched = jax.device_get(kept)
            # The program sorts by name; rows have the loop's order, as a host loop's do.
            columns = {name: fetched[name] for name in self._shown} | fetched
            rows += [{name: float(column[i]) for name, column in columns.items()} for i in range(some)]
            self.iteration += some
            count -= some
        return rows

    def close(self) -> None:
        """Nothing to free: the arrays go with the object."""
