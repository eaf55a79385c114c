"""Atari through ALE's vector environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from sherd.envs import describe, make_host
from sherd.errors import UsageError
from sherd.spaces import step_buffers

ale_py = pytest.importorskip("ale_py")


def ready(env_id, num_envs, seed=0, first_index=0, **options):
    batch = make_host(env_id, num_envs, seed, first_index, **options)
    out = step_buffers(batch.spec, num_envs)
    batch.reset(out.obs)
    return batch, out


def test_spaces_and_rom_names():
    spec = describe("ALE/MsPacman-v5")
    assert spec.observation == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert spec.action == gymnasium.spaces.Discrete(9)
    with pytest.raises(UsageError, match="did you mean 'ALE/Pong-v5'"):
        describe("ALE/Pongg-v5")
    with pytest.raises(UsageError, match="does not take these options"):
        make_host("ALE/Pong-v5", 1, 0, stickiness=1)


def test_splitting_a_batch_changes_nothing():
    # Episodes this short end many times, so that resets, no-ops and sticky actions are all compared.
    options = {"max_num_frames_per_episode": 60}
    whole, out = ready("ALE/Breakout-v5", 6, seed=4, **options)
    halves = [ready("ALE/Breakout-v5", 3, 4, first, **options) for first in (0, 3)]
    assert len({frames.tobytes() for frames in out.obs}) > 1
    generator = np.random.default_rng(0)
    ends = 0
    for _ in range(60):
        action = generator.integers(0, 4, 6).astype(np.int32)
        whole.step(action, out)
        ends += (out.terminated | out.truncated).sum()
        for part, (batch, half) in enumerate(halves):
            rows = slice(3 * part, 3 * part + 3)
            batch.step(action[rows], half)
            for field in ("obs", "next_obs", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(half, field), getattr(out, field)[rows])
    assert ends >= 12


def test_the_end_of_an_episode():
    batch, out = ready("ALE/Pong-v5", 2, max_num_frames_per_episode=80)
    last = out.obs.copy()
    for _ in range(80):
        batch.step(np.zeros(2, np.int32), out)
        ended = out.terminated | out.truncated
        np.testing.assert_array_equal(out.obs[~ended], out.next_obs[~ended])
        # The stack of a final observation continues the episode; a first observation starts afresh.
        np.testing.assert_array_equal(out.next_obs[:, :3], last[:, 1:])
        for row in ended.nonzero()[0]:
            assert not np.array_equal(out.obs[row], out.next_obs[row])
        if ended.any():
            break
        last = out.obs.copy()
    assert out.truncated.any()
    assert not out.terminated.any()


def test_a_lost_game_terminates():
    batch, out = ready("ALE/Breakout-v5", 2, repeat_action_probability=0.0)
    for _ in range(400):
        batch.step(np.ones(2, np.int32), out)
        if out.terminated.any():
            break
    assert out.terminated.any()
    assert not out.truncated.any()


def test_earlier_observations_are_not_overwritten():
    batch, out = ready("ALE/Pong-v5", 1)
    batch.step(np.zeros(1, np.int32), out)
    kept, copy = out.next_obs, out.next_obs.copy()
    fresh = step_buffers(batch.spec, 1)
    for _ in range(20):
        batch.step(np.zeros(1, np.int32), fresh)
    np.testing.assert_array_equal(kept, copy)
    assert not np.array_equal(fresh.next_obs, copy)
