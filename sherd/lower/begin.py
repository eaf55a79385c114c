"""The state that a program begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sherd.author.algorithm import Algorithm
from sherd.author.eager import begin_cells, separate
from sherd.author.environments import begin, graph_begin
from sherd.author.keys import Frame, run_key
from sherd.graph.ir import Graph, Ref
from sherd.lower.host import HostProgram, Setting
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

    program.cells = first_cells(graph, held, algorithm, setting.seed, setting.share, reset)
    return program


def first_cells(
    graph: Graph,
    held: tuple[Held, ...],
    algorithm: Algorithm,
    seed: int,
    share: Share,
    reset: Callable[[], Any],
) -> dict[str, Any]:
    """The cells a fragment begins with. All follow from the seed, but for the environments: `reset()`.

    Every cell is built for all environments and cut to the share, so that a share begins as its part of the
    whole does. What is mirrored of the environments arrives with the first message; until then it is blank.
    """
    bound = algorithm.bind(graph.spec)
    blank = begin((), zeros(graph.spec.observation, (share.envs,)), share.envs)
    whole = jax.jit(lambda key: begin_cells(bound, blank, key))(run_key(seed))
    cells = {}
    for one, cell in zip(held, graph.cells):
        if one.cell == "env" and not one.path:
            cells[one.name] = reset()
            continue
        value = cell.build() if cell.build is not None else Ref(0, one.path).pick(whole[one.cell])
        leaves, treedef = jax.tree.flatten(value)
        cut = [_rows(leaf, axis, share) for leaf, axis in zip(leaves, cell.env_axes)]
        cells[one.name] = jax.tree.unflatten(treedef, cut)
    return {name: value if name == "env" else separate(value) for name, value in cells.items()}


def _rows(leaf: Any, axis: int | None, share: Share) -> Any:
    if axis is None or share.count == share.envs:
        return leaf
    return jax.lax.slice_in_dim(jnp.asarray(leaf), share.first, share.first + share.count, axis=axis)
