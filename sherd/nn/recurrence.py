"""Running a torso over batches: leading axes, memories over time, and where memories begin afresh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.networks import Network, is_recurrent
from sherd.spaces import Space, Tree, zeros


def lead_axes(space: Space, obs: Tree) -> tuple[int, ...]:
    """The leading axes of a batch of observations.

    >>> lead_axes(gym_spaces.Box(0, 1, (3,)), jnp.zeros((7, 5, 3)))
    (7, 5)
    """
    node: Any = space
    while isinstance(node, gym_spaces.Dict | gym_spaces.Tuple):
        name: Any = next(iter(node.spaces)) if isinstance(node, gym_spaces.Dict) else 0
        node, obs = node.spaces[name], obs[name]
    return obs.shape[: obs.ndim - len(node.shape)]


def flatten(tree: Tree, axes: int) -> Tree:
    """The tree with its leading axes made one.

    >>> flatten(jnp.zeros((7, 5, 3)), 2).shape
    (35, 3)
    """
    if axes == 1:
        return tree
    return jax.tree.map(lambda x: jnp.asarray(x).reshape((-1, *jnp.shape(x)[axes:])), tree)


def reset(memory: Tree, fresh: Tree, first: jax.Array) -> Tree:
    """The memory [env, ...], with the rows of beginning episodes as they were at the start.

    >>> reset(jnp.ones((2, 1)), jnp.zeros((2, 1)), jnp.array([True, False])).tolist()
    [[0.0], [1.0]]
    """
    return jax.tree.map(
        lambda old, new: jnp.where(first.reshape((-1,) + (1,) * (old.ndim - 1)), new, old), memory, fresh
    )


def features(torso: Any, params: Any, space: Space, obs: Tree) -> jax.Array:
    """What a feed-forward torso makes of observations with any leading axes: [..., width]."""
    lead = lead_axes(space, obs)
    return torso.apply(params, flatten(obs, len(lead))).reshape((*lead, -1))


def unroll_torso(torso: Any, params: Any, obs: Tree, memory: Tree, first: jax.Array) -> tuple[Any, Tree]:
    """A recurrent torso's features and memories over time, [time, env, ...] or with more axes of rows."""
    if first.ndim > 2:
        return _unroll_rows(torso, params, obs, memory, first)
    if hasattr(torso, "encode") and hasattr(torso, "recur"):
        inputs = torso.encode(params, flatten(obs, 2))
        inputs = jax.tree.map(lambda x: x.reshape((*first.shape, *x.shape[1:])), inputs)
        advance = torso.recur
    else:
        inputs, advance = obs, torso.apply
    fresh = torso.initial_memory(first.shape[1])

    def step(carry: Tree, row: tuple[Tree, jax.Array]) -> tuple[Tree, tuple[jax.Array, Tree]]:
        found, carry = advance(params, row[0], reset(carry, fresh, row[1]))
        return carry, (found, carry)

    return jax.lax.scan(step, memory, (inputs, first))[1]


def _unroll_rows(torso: Any, params: Any, obs: Tree, memory: Tree, first: jax.Array) -> tuple[Any, Tree]:
    """`unroll_torso` for rows of several axes, which are made one meanwhile."""
    lead = first.ndim
    rows = jax.tree.map(lambda x: x.reshape((x.shape[0], -1, *x.shape[lead:])), (obs, first))
    found = unroll_torso(torso, params, rows[0], flatten(memory, lead - 1), rows[1])
    return jax.tree.map(lambda x: x.reshape((*first.shape, *x.shape[2:])), found)


def sample_inputs(torso: Any, space: Space) -> tuple[Tree, ...]:
    """What `init` and `apply` of a torso take, for a batch of one observation of zeros."""
    obs = zeros(space, (1,))
    return (obs, torso.initial_memory(1)) if is_recurrent(torso) else (obs,)


def feature_width(torso: Network, params: Any, inputs: tuple[Tree, ...]) -> int:
    """How wide a torso's features are, or a UsageError if they are not features."""
    recurrent = is_recurrent(torso)
    found = jax.eval_shape(torso.apply, params, *inputs)
    given = found[0] if recurrent and isinstance(found, tuple) else found
    shape = getattr(given, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 1:
        wanted = "(features, memory)" if recurrent else "features"
        raise UsageError(
            f"the network {type(torso).__name__} gave {found} for a batch of one observation.\n"
            f"  fix: let apply return {wanted}, with features of shape [batch, width]"
        )
    return shape[1]
