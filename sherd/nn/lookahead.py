"""What Q-learning compares, of windows drawn from replay: values now, and values of where steps led.

Results are [time, draw, env, ...]: one time for a feed-forward network, which learns from the first step of a
window; every step after the burn-in for a recurrent one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sherd.author import Transition
from sherd.nn.q_network import QNetwork
from sherd.nn.windows import pick_step, window_return


class Networks(NamedTuple):
    """Parameters of the network that learns and of its target; `noise` has three keys, or nothing."""

    params: Any
    target: Any
    noise: Any


class Lookahead(NamedTuple):
    """A step's return is `total + factor * value`, the value being that of `obs`.

    `now` is what the network that learns gives where the step with this `action` began; `online` and `target`
    are what the two networks give for `obs`.
    """

    action: Any
    now: Any
    online: Any
    target: Any
    obs: Any
    total: Any
    factor: Any


def look_ahead(model: QNetwork, networks: Networks, window: Transition, discount: float) -> Lookahead:
    """The first step of windows [n, draw, env, ...], with the return of up to n steps."""
    params, target, noise = networks
    total, factor, last = window_return(window.reward, window.terminated, window.truncated, discount)
    reached = _lead(pick_step(window.next_obs, last))
    return Lookahead(
        action=window.action[:1],
        now=model.outputs(params, _cut(window.obs, 0, 1), noise[0]),
        online=model.outputs(params, reached, noise[1]),
        target=model.outputs(target, reached, noise[2]),
        obs=reached,
        total=total[None],
        factor=factor[None],
    )


def look_along(
    model: QNetwork, networks: Networks, window: Transition, discount: float, n_step: int, burn_in: int
) -> Lookahead:
    """Every step of sequences [time, draw, env, ...] after their burn-in, with the return of up to n steps.

    `extra` is the memory with which each step was made. The burn-in refreshes it (Kapturowski et al., 2019).
    """
    lead = window.reward.shape[1:]
    rows = jax.tree.map(lambda leaf: leaf.reshape((leaf.shape[0], -1, *leaf.shape[3:])), window)
    now, online = _unrolled(model, networks.params, rows, burn_in, networks.noise[0])
    _, target = _unrolled(model, networks.target, rows, burn_in, networks.noise[2])
    learnt = _cut(rows, burn_in, None)
    # The data stop with the last step: like a truncation, that completes a return early.
    stops = learnt.truncated.at[-1].set(True)
    steps = jnp.arange(stops.shape[0])
    ahead = jnp.minimum(steps + jnp.arange(n_step)[:, None], steps[-1])
    total, factor, last = window_return(
        learnt.reward[ahead], learnt.terminated[ahead], stops[ahead], discount
    )
    place = steps[:, None] + last

    def reached(leaf: Any) -> Any:
        return jnp.take_along_axis(leaf, place.reshape(place.shape + (1,) * (leaf.ndim - 2)), axis=0)

    online, target, obs = jax.tree.map(reached, (online, target, learnt.next_obs))
    found = Lookahead(learnt.action, now, online, target, obs, total, factor)
    return jax.tree.map(lambda leaf: leaf.reshape((leaf.shape[0], *lead, *leaf.shape[2:])), found)


def of_action(outputs: Any, index: Any) -> Any:
    """Of outputs [..., actions] or [..., actions, atoms], those of one action each, given by index [...].

    >>> of_action(jnp.array([[1.0, 3.0], [2.0, 4.0]]), jnp.array([1, 0])).tolist()
    [3.0, 2.0]
    """
    axis = index.ndim
    picked = jnp.take_along_axis(outputs, jnp.expand_dims(index, range(axis, outputs.ndim)), axis)
    return picked.squeeze(axis)


def _unrolled(model: QNetwork, params: Any, rows: Transition, burn_in: int, noise: Any) -> tuple[Any, Any]:
    """Outputs [time, row, ...] where each step after the burn-in began, and where it led."""
    memory = _first(rows.extra)
    if burn_in:
        warm = _cut(rows, 0, burn_in)
        memories = model.unroll(params, warm.obs, memory, warm.first, noise)[1]
        memory = jax.lax.stop_gradient(jax.tree.map(lambda leaf: leaf[-1], memories))
    steps = _cut(rows, burn_in, None)
    # One observation more than there are steps: where the last one led.
    obs = jax.tree.map(lambda a, b: jnp.concatenate([a, b[-1:]]), steps.obs, steps.next_obs)
    first = jnp.concatenate([steps.first, jnp.zeros_like(steps.first[:1])])
    outputs, memories = model.unroll(params, obs, memory, first, noise)
    following = jax.lax.stop_gradient(outputs[1:])
    cut = steps.truncated & ~steps.terminated

    def bootstrapped() -> Any:
        """Where an episode was truncated, a step led to its final observation, not to the next first one."""
        pair = (steps.next_obs, _cut(memories, 0, -1))
        final, memory = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), pair)
        reached, _ = model.step(params, final, memory, jnp.zeros(cut.size, bool), noise)
        where = cut.reshape(cut.shape + (1,) * (following.ndim - 2))
        return jax.lax.stop_gradient(jnp.where(where, reached.reshape(following.shape), following))

    return outputs[:-1], jax.lax.cond(cut[:-1].any(), bootstrapped, lambda: following)


def _cut(tree: Any, begin: int, end: int | None) -> Any:
    return jax.tree.map(lambda leaf: leaf[begin:end], tree)


def _first(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _lead(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[None], tree)
