"""Half cheetahs as a batch are Gymnasium's half cheetahs, bit for bit."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from sherd.envs import make_host
from sherd.envs.host.cheetah import Cheetahs
from sherd.envs.host.gymnasium import LoopEnv, make_one
from sherd.spaces import step_buffers

OPTIONS = [
    {"max_episode_steps": 40},
    {"max_episode_steps": 40, "frame_skip": 3, "forward_reward_weight": 2.0, "ctrl_cost_weight": 0.3},
    {"max_episode_steps": 40, "exclude_current_positions_from_observation": False},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_equals_gymnasium_over_several_episodes(options):
    batch = make_host("HalfCheetah-v5", 3, seed=5, first_index=2, **options)
    assert isinstance(batch, Cheetahs)
    loop = LoopEnv(
        "HalfCheetah-v5", functools.partial(make_one, "HalfCheetah-v5", **options), 3, seed=5, first_index=2
    )
    ours, theirs = (step_buffers(env.spec, 3) for env in (batch, loop))
    assert batch.spec.observation == loop.spec.observation
    batch.reset(ours.obs)
    loop.reset(theirs.obs)
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(130):
        np.testing.assert_array_equal(ours.obs, theirs.obs)
        action = rng.uniform(-1.5, 1.5, (3, 6)).astype(np.float32)  # some beyond what a motor can do
        batch.step(action, ours)
        loop.step(action, theirs)
        for name in ("next_obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
        ended += int(ours.truncated.sum())
    assert ended == 9
    batch.close()
    loop.close()


def test_the_time_limit_is_that_of_the_registration():
    batch = make_host("HalfCheetah-v5", 1, seed=0)
    out = step_buffers(batch.spec, 1)
    batch.reset(out.obs)
    lengths = []
    for step in range(2000):
        batch.step(np.zeros((1, 6), np.float32), out)
        if out.truncated[0]:
            lengths.append(step + 1)
    assert lengths == [1000, 2000]
    batch.close()
