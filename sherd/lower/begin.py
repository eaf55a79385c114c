"""The state that a program begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sherd.author.algorithm import Algorithm
from sherd.author.eager import begin_cells, separate
from sherd.author.environments import begin, graph_begin
from sherd.author.keys import Frame, run_key
from sherd.author.replay import MEMORY
from sherd.graph.ir import Cell, Graph, Ref
from sherd.lower.host import HostProgram, Setting
from sherd.lower.memory import memory_type
from sherd.lower.share import Share
from sherd.policies.project import Held
from sherd.spaces import GraphEnv, zeros


def begin_host_program(
    graph: Graph, held: tuple[Held, ...], algorithm: Algorithm, setting: Setting, env: GraphEnv | None = None
) -> HostProgram:
    """A program that is ready for its first iteration; `env` is what `setting.stepping` steps."""
    program = HostProgram(graph, setting)

    def reset() -> Any:
        if env is None:
            return program.reset()
        frame = Frame(run_key(setting.seed), 0, setting.total, jnp.asarray(setting.share.index()))
        return separate(jax.jit(lambda: graph_begin(env, frame.env_keys("reset")))())

    made: dict[str, Callable[[], Any]] = {"env": reset}
    if (memory := setting.memory) is not None:
        made[MEMORY] = lambda: memory(memory_type(graph, setting.share.count))
    program.cells = first_cells(graph, held, algorithm, setting.seed, setting.share, made)
    return program


def first_cells(
    graph: Graph,
    held: tuple[Held, ...],
    algorithm: Algorithm,
    seed: int,
    share: Share,
    made: Mapping[str, Callable[[], Any]],
) -> dict[str, Any]:
    """The cells a fragment begins with. All follow from the seed, but for those that are `made` here.

    Every cell is built for all environments and cut to the share, so that a share begins as its part of the
    whole does. What is mirrored of the environments arrives with the first message; until then it is blank.
    """
    cells: dict[str, Any] = {}
    derived = []
    for one, cell in zip(held, graph.cells):
        if one.cell in made and not one.path:
            cells[one.name] = made[one.cell]()
        elif cell.build is not None:
            cells[one.name] = separate(cell.build(share.count))
        else:
            derived.append((one, cell))
    return cells | (_derived(graph, derived, algorithm, seed, share) if derived else {})


def _derived(
    graph: Graph, wanted: list[tuple[Held, Cell]], algorithm: Algorithm, seed: int, share: Share
) -> dict[str, Any]:
    """Cells that follow from the algorithm and the seed; nothing else is computed."""
    bound = algorithm.bind(graph.spec)
    blank = begin((), zeros(graph.spec.observation, (share.envs,)), share.envs)

    def build(key: Any) -> dict[str, Any]:
        whole, cells = begin_cells(bound, blank, key), {}
        for one, cell in wanted:
            leaves, treedef = jax.tree.flatten(Ref(0, one.path).pick(whole[one.cell]))
            cut = [_rows(leaf, axis, share) for leaf, axis in zip(leaves, cell.env_axes)]
            cells[one.name] = jax.tree.unflatten(treedef, cut)
        return cells

    return separate(jax.jit(build)(run_key(seed)))


def _rows(leaf: Any, axis: int | None, share: Share) -> Any:
    if axis is None or share.count == share.envs:
        return leaf
    return jax.lax.slice_in_dim(jnp.asarray(leaf), share.first, share.first + share.count, axis=axis)
