"""What the tests of DDPG, TD3 and SAC share: a walk with Box actions, and a small batch from replay."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from tasks import DISCOUNT, GraphWalk, Identity

from sherd.author import Transition
from sherd.spaces import EnvSpec

DRAWS, ENVS = 2, 3
SPEC = EnvSpec("toy", spaces.Box(-1, 1, (3,)), spaces.Box(-2, 4, (2,), np.float32), "graph")
LOW, HALF = -2.0, 3.0  # of these actions


def small_batch() -> Transition:
    """Steps [draw, env, ...] of which some terminated, some were truncated and one was both."""
    rng, lead = np.random.default_rng(0), (DRAWS, ENVS)
    return Transition(
        obs=rng.normal(size=(*lead, 3)).astype(np.float32),
        action=rng.uniform(-2, 4, (*lead, 2)).astype(np.float32),
        reward=rng.normal(size=lead).astype(np.float32),
        terminated=np.array([[True, False, False], [False, False, True]]),
        truncated=np.array([[False, True, False], [False, False, True]]),
        next_obs=rng.normal(size=(*lead, 3)).astype(np.float32),
        first=np.zeros(lead, bool),
        extra=(),
    )


class BoxWalk(GraphWalk):
    """The walk of known values for whoever acts with 0.5; anything else costs."""

    def __init__(self, terminates: bool = False) -> None:
        super().__init__(terminates)
        self.spec = EnvSpec("walk", self.spec.observation, spaces.Box(-1, 1, (1,), np.float32), "graph")

    def step(self, key, state, action):
        state, obs, reward, *ended = super().step(key, state, action)
        return state, obs, reward - 2 * (action[0] - 0.5) ** 2, *ended


# Settings with which DDPG, TD3 and SAC learn it in a second or two.
WALK = {
    "discount": DISCOUNT,
    "network": Identity(),
    "hidden": (32,),
    "batch": 32,
    "capacity": 2_000,
    "warm_up": 512,
    "updates": 16,
    "learning_rate": 3e-3,
    "tau": 0.1,
}
