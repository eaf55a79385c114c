"""Returns of windows [n, ...] of steps that a replay drew; they may cross the ends of episodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sherd.spaces import Tree


def window_return(
    reward: jax.Array, terminated: jax.Array, truncated: jax.Array, discount: float | jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The discounted rewards up to the first end of an episode, and what completes them.

    Returns (total, factor, last): the return is `total + factor * value`, where the value is that of the
    observation to which step `last` led; `factor` is the discount over the steps summed, 0 if the last
    one terminated.

    >>> row = lambda *x: jnp.array(x)[:, None]
    >>> no, cut = row(False, False, False), row(False, True, False)
    >>> [x.tolist() for x in window_return(row(1.0, 1.0, 9.0), no, cut, 0.5)]
    [[1.5], [0.25], [1]]
    """
    # With the first step always counted, a step counts if no earlier one ended.
    going = jnp.cumprod(~(terminated | truncated), axis=0, dtype=jnp.int32)
    counted = jnp.concatenate([jnp.ones_like(going[:1]), going[:-1]])
    steps = jnp.sum(counted, axis=0)
    power = jnp.asarray(discount, reward.dtype) ** jnp.arange(reward.shape[0] + 1)
    weight = counted * power[:-1].reshape((-1,) + (1,) * (reward.ndim - 1))
    died = jnp.any(terminated & (counted > 0), axis=0)
    return jnp.sum(weight * reward, axis=0), jnp.where(died, 0.0, power[steps]), steps - 1


def pick_step(tree: Tree, last: jax.Array) -> Tree:
    """Of leaves [n, *rows, ...], for each row the step that `last` [*rows] names.

    >>> pick_step({"x": jnp.array([[1, 2], [3, 4]])}, jnp.array([1, 0]))["x"].tolist()
    [3, 2]
    """

    def pick(leaf: jax.Array) -> jax.Array:
        index = last.reshape((1, *last.shape, *(1,) * (leaf.ndim - 1 - last.ndim)))
        return jnp.take_along_axis(leaf, index, axis=0)[0]

    return jax.tree.map(pick, tree)
