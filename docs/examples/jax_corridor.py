"""The corridor again, in JAX: one environment as two pure functions.

sherd check-env jax_corridor:Corridor
sherd train ppo jax_corridor:Corridor --policy Fused --steps 30000
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from sherd.spaces import EnvSpec


class State(NamedTuple):
    """Where the walker is, and for how long it has walked."""

    place: Any
    time: Any


class Corridor:
    """Start somewhere, go left (0) or right (1); the right end pays 1, and every step costs a little."""

    spec = EnvSpec("corridor", spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2), "graph")
    length, time_limit = 10, 50

    def reset(self, key: Any) -> tuple[State, Any]:
        state = State(jax.random.randint(key, (), 0, self.length), jnp.int32(0))
        return state, self._observe(state)

    def step(self, key: Any, state: State, action: Any) -> tuple[State, Any, Any, Any, Any]:
        del key  # nothing is random but the start
        place = jnp.maximum(0, state.place + jnp.where(action == 1, 1, -1))
        state = State(place, state.time + 1)
        arrived = place >= self.length
        reward = jnp.where(arrived, 1.0, -0.01)
        return state, self._observe(state), reward, arrived, state.time >= self.time_limit

    def _observe(self, state: State) -> Any:
        return jnp.array([state.place / self.length], jnp.float32)
