"""gymnax's environments as graph environments: ids `gymnax/CartPole-v1`, `gymnax/Breakout-MinAtar`, ...

gymnax's `step` resets by itself and so hides the final observation; `step_env` does not. Since gymnax 1.0
its flag is the natural end alone, and `is_truncated` is the time limit.
"""

from __future__ import annotations

from typing import Any

import gymnax
import jax
import numpy as np
from gymnasium import spaces as gym_spaces
from gymnax.environments import spaces as gymnax_spaces

from sherd.envs.graph.batch import carry
from sherd.errors import UsageError, nearest
from sherd.spaces import EnvSpec, Space, Tree, require_supported


class GymnaxEnv:
    """A gymnax environment with its default parameters; the state is gymnax's own.

    >>> GymnaxEnv("CartPole-v1").spec.action
    Discrete(2)
    """

    def __init__(self, name: str) -> None:
        if name not in gymnax.registered_envs:
            known = [f"gymnax/{known}" for known in gymnax.registered_envs]
            raise UsageError(
                f"gymnax has no environment {name!r}; {nearest(f'gymnax/{name}', known)}\n"
                "  fix: use gymnax/ and a name of gymnax.registered_envs"
            )
        self._env, self._params = gymnax.make(name)
        observation = _converted(f"gymnax/{name}", self._env.observation_space(self._params))
        action = _converted(f"gymnax/{name}", self._env.action_space(self._params))
        self.spec = EnvSpec(f"gymnax/{name}", observation, action, "graph")
        require_supported(self.spec.id, "observation", observation)
        require_supported(self.spec.id, "action", action)

    def reset(self, key: Any) -> tuple[Tree, Tree]:
        """Start an episode: (state, observation)."""
        obs, state = self._env.reset_env(key, self._params)
        return state, carry(self.spec.observation, obs)

    def step(self, key: Any, state: Tree, action: Tree) -> tuple[Tree, Tree, Any, Any, Any]:
        """One step: (state, observation, reward, terminated, truncated), with no automatic reset."""
        obs, state, reward, terminated, _ = self._env.step_env(key, state, action, self._params)
        truncated = self._env.is_truncated(state, self._params)
        return state, carry(self.spec.observation, obs), reward, terminated, truncated


def _converted(env_id: str, space: gymnax_spaces.Space) -> Space:
    """The Gymnasium space that describes the same values."""
    if isinstance(space, gymnax_spaces.Discrete):
        return gym_spaces.Discrete(int(space.n))
    if isinstance(space, gymnax_spaces.Box):
        dtype = np.dtype(space.dtype)
        low, high = (
            np.broadcast_to(np.asarray(jax.device_get(b), dtype), space.shape)
            for b in (space.low, space.high)
        )
        return gym_spaces.Box(low, high, tuple(space.shape), dtype.type)
    if isinstance(space, gymnax_spaces.Dict):
        return gym_spaces.Dict({name: _converted(env_id, child) for name, child in space.spaces.items()})
    if isinstance(space, gymnax_spaces.Tuple):
        return gym_spaces.Tuple([_converted(env_id, child) for child in space.spaces])
    raise UsageError(
        f"{env_id}: its space {space} is of a kind that Sherd does not know.\n"
        "  fix: use an environment whose spaces are gymnax's Discrete, Box, Dict or Tuple"
    )
