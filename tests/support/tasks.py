"""Environments made for tests: one with known values, and one for every kind of space."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from sherd.spaces import EnvSpec

DISCOUNT = 0.9
LENGTH = 5
FIRST_REWARD = -10.0
FOREVER = 1 / (1 - DISCOUNT)


def true_value(t: int, terminates: bool) -> float:
    """The value of having made t steps of the walk: reward -10 for the first step, 1 for every later one.

    If it terminates, nothing follows step 5. If it is only truncated there, the walk would have gone on.
    """
    if not terminates:
        return FOREVER if t else FIRST_REWARD + DISCOUNT * FOREVER
    return sum(DISCOUNT ** (k - t) * (1.0 if k else FIRST_REWARD) for k in range(t, LENGTH))


class WalkState(NamedTuple):
    t: Any


class GraphWalk:
    """A walk whose observation is the true value of where it stands."""

    def __init__(self, terminates: bool) -> None:
        self.terminates = terminates
        self.values = jnp.array([true_value(t, terminates) for t in range(LENGTH + 1)], jnp.float32)
        box = spaces.Box(-100, 100, (1,), np.float32)
        self.spec = EnvSpec("walk", box, spaces.Discrete(2), "graph")

    def reset(self, key):
        del key
        return WalkState(jnp.int32(0)), self.values[0][None]

    def step(self, key, state, action):
        del key, action
        t = state.t + 1
        over = t >= LENGTH
        reward = jnp.where(state.t == 0, FIRST_REWARD, 1.0).astype(jnp.float32)
        ended = (over, ~over & over) if self.terminates else (~over & over, over)
        return WalkState(t), self.values[t][None], reward, *ended


class HostWalk(gymnasium.Env):
    """The same walk as an ordinary Gymnasium environment."""

    observation_space = spaces.Box(-100, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, terminates: bool = False) -> None:
        self.terminates, self.t = terminates, 0

    def _obs(self):
        return np.array([true_value(self.t, self.terminates)], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action):
        reward = FIRST_REWARD if self.t == 0 else 1.0
        self.t += 1
        over = self.t >= LENGTH
        return self._obs(), reward, over and self.terminates, over and not self.terminates, {}


class Identity:
    """A network whose features are the observation."""

    def init(self, key, obs):
        del key, obs
        return {}

    def apply(self, params, obs):
        del params
        return obs


class Match:
    """One-step episodes: the reward is how well the action matches a target that the observation shows."""

    def __init__(self, action: spaces.Space, show: str = "flat") -> None:
        self.action, self.show = action, show
        self.width = int(np.prod(action.shape or (1,)))
        flat = spaces.Box(-1, 1, (self.width,), np.float32)
        kinds = {
            "flat": flat,
            "dict": spaces.Dict({"target": flat, "noise": spaces.Discrete(3)}),
            "tuple": spaces.Tuple([flat, spaces.Dict({"bits": spaces.MultiBinary(2)})]),
            "image": spaces.Box(0, 255, (12, 12, self.width), np.uint8),
        }
        self.spec = EnvSpec("match", kinds[show], action, "graph")

    def _target(self, key):
        if isinstance(self.action, spaces.Box):
            return jax.random.uniform(key, (self.width,), minval=-0.5, maxval=0.5)
        return jax.random.bernoulli(key, shape=(self.width,)).astype(jnp.float32)

    def _observe(self, target):
        if self.show == "flat":
            return target
        if self.show == "dict":
            return {"target": target, "noise": jnp.int32(1)}
        if self.show == "tuple":
            return target, {"bits": jnp.zeros(2, jnp.int8)}
        return jnp.broadcast_to(target * 255, (12, 12, self.width)).astype(jnp.uint8)

    def reset(self, key):
        target = self._target(key)
        return target, self._observe(target)

    def step(self, key, state, action):
        taken = jnp.reshape(action, (self.width,)).astype(jnp.float32)
        reward = 1 - jnp.abs(taken - state).mean()
        target = self._target(key)
        return target, self._observe(target), reward, jnp.bool_(True), jnp.bool_(False)
