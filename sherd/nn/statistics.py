"""Running statistics of observations and of returns, as pytrees the caller carries.

They are updated once per rollout, from all environments of all replicas at once, so that the result
does not depend on how environments are divided.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sherd.author import reduce
from sherd.spaces import MASK_KEY, Tree

_EPSILON = 1e-8


class Moments(NamedTuple):
    """How many samples were seen, and their mean and population variance (trees like one sample)."""

    count: jax.Array  # type: ignore[assignment]  # the field hides tuple.count on purpose
    mean: Tree
    var: Tree


def initial_moments(sample: Tree) -> Moments:
    """Statistics of nothing yet, for samples shaped like this one (no leading axes).

    Leaves that are never normalised (integers, the action mask) hold scalars, to cost nothing.

    >>> sample = {"position": jnp.zeros(2), "image": jnp.zeros((84, 84), jnp.uint8)}
    >>> jax.tree.map(jnp.shape, initial_moments(sample).mean)
    {'image': (), 'position': (2,)}
    """
    leaves, structure = jax.tree.flatten(sample)
    shapes = [jnp.shape(leaf) if kept else () for leaf, kept in zip(leaves, _measured(sample))]
    zeros = jax.tree.unflatten(structure, [jnp.zeros(shape, jnp.float32) for shape in shapes])
    ones = jax.tree.unflatten(structure, [jnp.ones(shape, jnp.float32) for shape in shapes])
    return Moments(jnp.zeros((), jnp.float32), zeros, ones)


def update_moments(moments: Moments, batch: Tree, axes: tuple[int, ...] = (0, 1)) -> Moments:
    """The statistics after seeing a batch whose samples lie along the leading `axes`.

    >>> seen = update_moments(initial_moments(jnp.zeros(())), jnp.array([[1.0, 3.0]]))
    >>> seen.count.item(), seen.mean.item(), seen.var.item()
    (2.0, 2.0, 1.0)
    """
    leaves, structure = jax.tree.flatten(batch)
    local = 1
    for axis in axes:
        local *= leaves[0].shape[axis]
    # Chan et al.'s merge of two sets of moments.
    seen = float(reduce.count(local))
    total = moments.count + seen
    share = seen / total
    means, variances = [], []
    rows = zip(leaves, _measured(batch), jax.tree.leaves(moments.mean), jax.tree.leaves(moments.var))
    for leaf, measured, mean, var in rows:
        if measured:
            batch_mean, batch_var = reduce.moments(leaf, axes)
            delta = batch_mean - mean
            mean, var = (
                mean + share * delta,
                (1 - share) * var + share * batch_var + share * (1 - share) * jnp.square(delta),
            )
        means.append(mean)
        variances.append(var)
    return Moments(total, jax.tree.unflatten(structure, means), jax.tree.unflatten(structure, variances))


def normalise(moments: Moments, x: Tree, clip: float = 10.0) -> Tree:
    """Samples with any leading axes, shifted and scaled by the statistics and clipped.

    >>> seen = Moments(jnp.array(2.0), jnp.array(2.0), jnp.array(1.0))
    >>> normalise(seen, jnp.array([3.0, 99.0])).tolist()
    [1.0, 10.0]
    """
    leaves, structure = jax.tree.flatten(x)
    rows = zip(leaves, _measured(x), jax.tree.leaves(moments.mean), jax.tree.leaves(moments.var))
    return jax.tree.unflatten(
        structure,
        [
            jnp.clip((leaf - mean) * jax.lax.rsqrt(var + _EPSILON), -clip, clip) if measured else leaf
            for leaf, measured, mean, var in rows
        ],
    )


def scale_rewards(
    moments: Moments,
    accumulated: jax.Array,
    reward: jax.Array,
    ended: jax.Array,
    discount: float,
    clip: float = 10.0,
) -> tuple[jax.Array, Moments, jax.Array]:
    """A rollout's rewards [time, env] divided by the deviation of the discounted return.

    `accumulated` [env] is each environment's running discounted sum of rewards, kept from one rollout
    to the next and cleared where an episode ended. Returns (accumulated, moments, scaled rewards).

    >>> start = initial_moments(jnp.zeros(()))
    >>> reward, ended = jnp.array([[2.0], [2.0]]), jnp.array([[False], [True]])
    >>> accumulated, moments, scaled = scale_rewards(start, jnp.zeros(1), reward, ended, 0.5)
    >>> accumulated.tolist(), moments.mean.item(), scaled.tolist()
    ([0.0], 2.5, [[4.0], [4.0]])
    """

    def step(running: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        running = running * discount + row[0]
        return jnp.where(row[1], 0.0, running), running

    accumulated, returns = jax.lax.scan(step, accumulated, (reward, ended))
    moments = update_moments(moments, returns, (0, 1))
    scaled = reward * jax.lax.rsqrt(moments.var + _EPSILON)
    return accumulated, moments, jnp.clip(scaled, -clip, clip)


def _measured(tree: Tree) -> list[bool]:
    """Which leaves are normalised: floats, except the mask of legal actions."""

    def is_mask(path: tuple[Any, ...]) -> bool:
        return bool(path) and getattr(path[0], "key", None) == MASK_KEY

    return [
        jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and not is_mask(path)
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]
