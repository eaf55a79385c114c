"""What the tests of DDPG, TD3 and SAC share: a walk with Box actions, and a small batch from replay."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from tasks import GraphWalk

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
    """The walk of known values, with an action that it does not heed."""

    def __init__(self, terminates: bool) -> None:
        super().__init__(terminates)
        self.spec = EnvSpec("walk", self.spec.observation, spaces.Box(-1, 1, (1,), np.float32), "graph")
