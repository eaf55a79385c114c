"""Episodes added up after all turns are those added up turn by turn."""

from __future__ import annotations

import jax
import numpy as np

from sherd.envs import make_host
from sherd.lower.driver import Driver

ENVS, TRIPS = 8, 16


def test_adding_up_at_the_end_gives_the_same_numbers():
    env, draw = make_host("CartPole-v1", ENVS, seed=1), np.random.default_rng(0)
    drivers, ends = [Driver(env, TRIPS), Driver(env, TRIPS)], [None, None]
    for chance in (0.0, 0.3, 0.05, 0.0, 1.0):
        reward = draw.random((TRIPS, ENVS), np.float32)
        terminated, truncated = draw.random((2, TRIPS, ENVS)) < chance
        for driver, end in zip(drivers, ends):
            driver.begin()
            if end is not None:  # episodes go on from rollout to rollout
                driver.enter(end)
            outcome = driver.stacked[1]
            outcome.reward[:], outcome.terminated[:], outcome.truncated[:] = reward, terminated, truncated
        for turn in range(TRIPS):
            drivers[0].account(turn)
        drivers[1].account_all()
        kept = [jax.tree.leaves((driver.states, driver.stacked[2])) for driver in drivers]
        for one, other in zip(*kept, strict=True):
            np.testing.assert_array_equal(one, other)
        ends = [jax.tree.map(lambda leaf: leaf[-1].copy(), driver.states) for driver in drivers]
    env.close()
