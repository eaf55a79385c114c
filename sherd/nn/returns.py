"""Advantages and returns of rollouts [time, env], with termination and truncation kept apart.

`next_value[t]` is the value of the state that step t really led to: the final observation where an
episode ended, never the first one of the next episode. A terminated step has no future; a truncated one
has, and only its trace is cut.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sherd.errors import UsageError


class VTrace(NamedTuple):
    """What the value and the policy learn towards, both [time, env]; neither carries a gradient."""

    target: jax.Array
    advantage: jax.Array


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


def n_step_returns(
    reward: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    ended: jax.Array,
    discount: float | jax.Array,
    n: int,
) -> jax.Array:
    """Sums of up to n discounted rewards, completed by `next_value` where they stop before the episode does.

    They stop after n steps, with the data, or where an episode was cut.

    >>> row = lambda *x: jnp.array(x)[:, None]
    >>> no = row(False, False, False)
    >>> n_step_returns(row(1.0, 1.0, 1.0), row(8.0, 4.0, 2.0), no, no, 0.5, n=2).tolist()
    [[2.5], [2.0], [2.0]]
    """
    if n < 1:
        raise UsageError(f"n-step returns need n of 1 or more, not {n}.\n  fix: raise the number of steps")
    if n >= reward.shape[0]:
        return discounted_returns(reward, next_value, terminated, ended, discount)
    single = reward + discount * jnp.where(terminated, 0.0, next_value)

    def lengthen(_: Any, sums: jax.Array) -> jax.Array:
        # The last step has nothing after it, and an ended one nothing of its own episode.
        longer = reward[:-1] + discount * sums[1:]
        return single.at[:-1].set(jnp.where(ended[:-1], single[:-1], longer))

    return jax.lax.fori_loop(1, n, lengthen, single)


def vtrace(
    log_ratio: jax.Array,
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    ended: jax.Array,
    discount: float | jax.Array,
    lam: float | jax.Array = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> VTrace:
    """V-trace targets (Espeholt et al., 2018, equation 1) and the policy gradient's advantages (section 4.2).

    `log_ratio` is the log-probability of the action under the policy that learns, less that under the one
    that acted. As in `gae`, `next_value` is the value of where the step really led. With ratios of one the
    advantage is that of `gae`, whatever `lam`, and the target is the value plus it.

    >>> row = lambda *x: jnp.array(x)[:, None]
    >>> zero, done = row(0.0, 0.0), row(False, True)
    >>> found = vtrace(jnp.log(row(0.5, 3.0)), row(1.0, 1.0), zero, zero, done, done, discount=0.5)
    >>> found.target.tolist(), found.advantage.tolist()
    ([[0.75], [1.0]], [[0.75], [1.0]])
    """
    ratio = jnp.exp(log_ratio)
    trace = jnp.where(ended, 0.0, discount * lam * jnp.ones_like(ratio))
    error = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    last = jnp.zeros_like(error[-1])
    correction = _backward(jnp.minimum(clip_rho, ratio) * error, jnp.minimum(clip_c, ratio) * trace, last)
    following = jnp.concatenate([correction[1:], last[None]])
    advantage = jnp.minimum(clip_pg_rho, ratio) * (error + trace * following)
    return VTrace(*jax.lax.stop_gradient((value + correction, advantage)))


def _backward(gain: jax.Array, decay: jax.Array, last: jax.Array) -> jax.Array:
    """The recurrence x[t] = gain[t] + decay[t] * x[t + 1], from the end, where x[t + 1] is `last`.

    >>> _backward(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]), jnp.array(4.0)).tolist()
    [3.0, 4.0]
    """

    def step(after: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        now = row[0] + row[1] * after
        return now, now

    return jax.lax.scan(step, last, (gain, decay), reverse=True)[1]
