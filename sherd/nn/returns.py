"""Advantages and returns of rollouts [time, env], with termination and truncation kept apart.

`next_value[t]` is the value of the state that step t really led to: the final observation where an
episode ended, never the first one of the next episode. A terminated step has no future; a truncated one
has, and only its trace is cut.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    ended: jax.Array,
    discount: float | jax.Array,
    lam: float | jax.Array,
) -> jax.Array:
    """Generalised advantage estimates (Schulman et al., 2016); `ended` is terminated or truncated.

    >>> row = lambda *x: jnp.array(x)[:, None]
    >>> done = row(False, True)
    >>> gae(row(1.0, 1.0), row(0.0, 0.0), row(0.0, 9.0), done, done, 0.5, 1.0).tolist()
    [[1.5], [1.0]]
    """
    error = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    decay = discount * lam * jnp.where(ended, 0.0, jnp.ones_like(error))
    return _backward(error, decay, jnp.zeros_like(error[-1]))


def discounted_returns(
    reward: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    ended: jax.Array,
    discount: float | jax.Array,
) -> jax.Array:
    """Discounted sums of rewards, completed by `next_value` where the data stop before the episode does.

    >>> row = lambda *x: jnp.array(x)[:, None]
    >>> no = row(False, False)
    >>> discounted_returns(row(1.0, 1.0), row(7.0, 4.0), no, no, 0.5).tolist()
    [[2.5], [3.0]]
    """
    stops = jnp.asarray(ended).at[-1].set(True)
    bootstrap = jnp.where(stops & ~terminated, next_value, 0.0)
    decay = discount * jnp.where(stops, 0.0, jnp.ones_like(reward))
    return _backward(reward + discount * bootstrap, decay, jnp.zeros_like(reward[-1]))


def _backward(gain: jax.Array, decay: jax.Array, last: jax.Array) -> jax.Array:
    """The recurrence x[t] = gain[t] + decay[t] * x[t + 1], from the end."""

    def step(after: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        now = row[0] + row[1] * after
        return now, now

    return jax.lax.scan(step, last, (gain, decay), reverse=True)[1]
