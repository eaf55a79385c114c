"""The values of where steps led, which every on-policy algorithm bootstraps from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sherd.author import Transition


def successor_values(
    value_of: Callable[[Any, Any], jax.Array], rollout: Transition, value: jax.Array, memories: Any
) -> jax.Array:
    """The value of where each step led, [time, env]: the next step's, except where an episode was truncated.

    `value_of(obs, memory)` values observations, `value` is that of `rollout.obs`, and `memories` are those
    after each step. Final observations are valued only if an episode was truncated within the rollout.
    """
    last = value_of(*jax.tree.map(lambda leaf: leaf[-1], (rollout.next_obs, memories)))
    following = jnp.concatenate([value[1:], last[None]])
    cut = rollout.truncated & ~rollout.terminated

    def bootstrapped() -> jax.Array:
        return jnp.where(cut, value_of(rollout.next_obs, memories), following)

    return jax.lax.cond(cut[:-1].any(), bootstrapped, lambda: following)
