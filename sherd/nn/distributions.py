"""Distributions over actions, one for each action space.

A network gives one flat vector per row; `distribution` cuts it up as the space demands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.kinds import Bernoulli, Categorical, Distribution, Normal, Product
from sherd.spaces import Space, Tree, carried_dtype, leaf_spaces, space_map, tree_map

# Small enough for a probability of exactly zero, large enough to stay finite in products and gradients.
NEVER = -1e9

__all__ = ["Distribution", "clip_action", "distribution", "log_std_size", "parameter_size"]


def parameter_size(space: Space) -> int:
    """How many numbers a network must give for each action.

    >>> parameter_size(gym_spaces.MultiDiscrete([2, 3])), parameter_size(gym_spaces.Box(-1, 1, (4,)))
    (5, 4)
    """
    return sum(_leaf_size(leaf) for _, leaf in leaf_spaces(space))


def log_std_size(space: Space) -> int:
    """How many log standard deviations the space needs: one for each number of its Box leaves.

    >>> log_std_size(gym_spaces.Discrete(2)), log_std_size(gym_spaces.Box(-1, 1, (4,)))
    (0, 4)
    """
    boxes = [leaf for _, leaf in leaf_spaces(space) if isinstance(leaf, gym_spaces.Box)]
    return sum(math.prod(leaf.shape) for leaf in boxes)


def distribution(
    space: Space, parameters: jax.Array | tuple[jax.Array, jax.Array | None], mask: Tree = None
) -> Distribution:
    """The distribution over a space whose parameters a network gave.

    `parameters` is the array [..., parameter_size(space)], or a pair of it and of the log standard
    deviations of the Box leaves, [log_std_size(space)] with or without leading axes. `mask` marks legal
    actions: [..., n] for Discrete, the options of all choices in a row for MultiDiscrete, a tree of such
    for Dict and Tuple.

    >>> pick = distribution(gym_spaces.Discrete(3), jnp.zeros((1, 3)), mask=jnp.array([[1, 0, 1]]))
    >>> jnp.exp(pick.log_prob(jnp.array([2]))).tolist(), jnp.exp(pick.log_prob(jnp.array([1]))).tolist()
    ([0.5], [0.0])
    """
    outputs, log_std = parameters if isinstance(parameters, tuple) else (parameters, None)
    if log_std is None and log_std_size(space):
        raise UsageError(
            f"a distribution over {space} needs log standard deviations for its Box.\n"
            "  fix: pass parameters=(means, log_std)"
        )
    return _build(space, outputs, log_std, mask)


def clip_action(space: Space, action: Tree) -> Tree:
    """The action with its Box leaves clipped to their bounds (and rounded where the Box holds integers).

    >>> clip_action(gym_spaces.Box(-1, 1, (2,)), jnp.array([0.5, 7.0])).tolist()
    [0.5, 1.0]
    """
    return tree_map(_clip_leaf, space_map(lambda leaf: leaf, space), action)


def _clip_leaf(space: Space, action: jax.Array) -> jax.Array:
    if not isinstance(space, gym_spaces.Box):
        return action
    clipped = jnp.clip(action, space.low, space.high)
    dtype = carried_dtype(space)
    return jnp.round(clipped).astype(dtype) if np.issubdtype(dtype, np.integer) else clipped


def _build(space: Space, outputs: jax.Array, log_std: jax.Array | None, mask: Tree) -> Distribution:
    if isinstance(space, gym_spaces.Dict):
        parts = list(_children(list(space.spaces.items()), outputs, log_std, mask))
        return Product(dict(parts))
    if isinstance(space, gym_spaces.Tuple):
        parts = list(_children(list(enumerate(space.spaces)), outputs, log_std, mask))
        return Product(tuple(part for _, part in parts))
    if isinstance(space, gym_spaces.Discrete | gym_spaces.MultiDiscrete):
        return _categorical(space, outputs, mask)
    if mask is not None:
        raise UsageError(
            f"an action mask was given for {space}, which has no discrete options.\n"
            "  fix: mask only Discrete and MultiDiscrete actions"
        )
    event = space.shape or ()
    if isinstance(space, gym_spaces.MultiBinary):
        return Bernoulli(_reshape(outputs, event), event, carried_dtype(space).name)
    if isinstance(space, gym_spaces.Box) and log_std is not None:
        return Normal(_reshape(outputs, event), _reshape(log_std, event), event)
    raise UsageError(
        f"there is no distribution over {space}.\n  fix: use Box, Discrete, MultiDiscrete or MultiBinary"
    )


def _children(
    children: list[tuple[Any, Space]], outputs: jax.Array, log_std: jax.Array | None, mask: Tree
) -> Iterator[tuple[Any, Distribution]]:
    if mask is not None and not isinstance(mask, dict | tuple):
        raise UsageError(
            "the actions are a Dict or Tuple but the action mask is a single array.\n"
            "  fix: give the mask as a Dict or Tuple of the same layout"
        )
    taken, deviations = 0, 0
    for name, child in children:
        size, wide = parameter_size(child), log_std_size(child)
        part = outputs[..., taken : taken + size]
        spread = None if log_std is None else log_std[..., deviations : deviations + wide]
        legal = mask.get(name) if isinstance(mask, dict) else mask and mask[name]
        yield name, _build(child, part, spread, legal)
        taken, deviations = taken + size, deviations + wide


def _categorical(
    space: gym_spaces.Discrete | gym_spaces.MultiDiscrete, outputs: jax.Array, mask: Tree
) -> Categorical:
    sizes = [int(space.n)] if isinstance(space, gym_spaces.Discrete) else space.nvec.reshape(-1).tolist()
    start = tuple(np.asarray(space.start).reshape(-1).tolist())
    dtype, event, masked = carried_dtype(space).name, space.shape or (), mask is not None
    if masked:
        legal = jnp.concatenate(mask, axis=-1) if isinstance(mask, tuple) else jnp.asarray(mask)
        if legal.shape[-1] != sum(sizes):
            raise UsageError(
                f"the action mask has {legal.shape[-1]} entries, but {space} has {sum(sizes)} options.\n"
                "  fix: give one entry for every option"
            )
        outputs = jnp.where(legal != 0, outputs, NEVER)
    width = max(sizes)
    if min(sizes) == width:
        return Categorical(_reshape(outputs, (*event, width)), event, start, dtype, masked)
    # Choices of unequal size become rows of one array, padded with options that are never taken.
    firsts = np.cumsum([0, *sizes[:-1]])[:, None]
    real = np.arange(width) < np.asarray(sizes)[:, None]
    index = np.where(real, firsts + np.arange(width), 0)
    logits = jnp.where(real, outputs[..., index], NEVER)
    return Categorical(logits.reshape((*outputs.shape[:-1], *event, width)), event, start, dtype, True)


def _leaf_size(space: Space) -> int:
    if isinstance(space, gym_spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym_spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return math.prod(space.shape or ())


def _reshape(x: jax.Array, event: tuple[int, ...]) -> jax.Array:
    """The last axis, unfolded to the event's shape."""
    return x.reshape((*x.shape[:-1], *event))
