"""The vectorised CartPole: Gymnasium's numbers, our resets."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from sherd.envs import make_host
from sherd.envs.host.cartpole import CartPoles
from sherd.errors import RunError
from sherd.spaces import step_buffers


def ready(num_envs, seed=0, first_index=0, **options):
    batch = make_host("CartPole-v1", num_envs, seed, first_index, **options)
    assert isinstance(batch, CartPoles)
    out = step_buffers(batch.spec, num_envs)
    batch.reset(out.obs)
    return batch, out


@pytest.mark.parametrize("num_envs", [1, 7, 64])
def test_the_dynamics_are_gymnasiums_bit_for_bit(num_envs):
    batch, out = ready(num_envs)
    reference = gymnasium.make_vec("CartPole-v1", num_envs, "vector_entry_point")
    reference.reset(seed=0)
    generator = np.random.default_rng(0)
    for _ in range(50):
        state = generator.uniform(-1, 1, (4, num_envs)) * [[3.0], [4.0], [0.3], [4.0]]
        action = generator.integers(0, 2, num_envs)
        batch.set_state(state)
        reference.state, reference.prev_done = state.copy(), np.zeros(num_envs, bool)
        batch.step(action.astype(np.int32), out)
        expected, reward, terminated, _, _ = reference.step(action)
        np.testing.assert_array_equal(out.next_obs, expected)
        np.testing.assert_array_equal(out.terminated, terminated)
        np.testing.assert_array_equal(out.reward, reward)
        going = ~(terminated | out.truncated)
        np.testing.assert_array_equal(batch._state[:, going], reference.state[:, going])


def test_the_dynamics_are_the_scalar_environments():
    batch, out = ready(1)
    scalar = gymnasium.make("CartPole-v1").unwrapped
    scalar.reset(seed=0)
    generator = np.random.default_rng(1)
    for _ in range(100):
        state = generator.uniform(-1, 1, 4) * [2.6, 2.0, 0.22, 2.0]
        action = int(generator.integers(0, 2))
        scalar.state, scalar.steps_beyond_terminated = state.copy(), None
        batch.set_state(state[:, None])
        batch.step(np.array([action], np.int32), out)
        expected, _, terminated, _, _ = scalar.step(action)
        np.testing.assert_allclose(out.next_obs[0], expected, rtol=0, atol=1e-6)
        assert out.terminated[0] == terminated


def test_rows_reset_in_the_step_in_which_they_end():
    batch, out = ready(16)
    ends = 0
    for _ in range(60):
        batch.step(np.ones(16, np.int32), out)
        ended = out.terminated | out.truncated
        ends += ended.sum()
        np.testing.assert_array_equal(out.obs[~ended], out.next_obs[~ended])
        assert (np.abs(out.obs[ended]) <= 0.05).all()
        assert (np.abs(out.next_obs[ended][:, 2]) > 0.2).all()
    # More episodes than start states are drawn at once would need 16 per row; pushing one way lasts about 9.
    assert ends >= 16 * 5


def test_episodes_are_cut_at_500_steps():
    batch, out = ready(2)
    for step in range(1, 501):
        batch.set_state(np.zeros((4, 2)))
        batch.step(np.array([0, 1], np.int32), out)
        assert out.truncated.tolist() == [step == 500] * 2
        assert not out.terminated.any()
    batch.step(np.array([0, 1], np.int32), out)
    assert not out.truncated.any()


def test_splitting_a_batch_changes_nothing():
    whole, out = ready(6, seed=3)
    halves = [ready(3, seed=3), ready(3, seed=3, first_index=3)]
    generator = np.random.default_rng(0)
    for _ in range(600):
        action = generator.integers(0, 2, 6).astype(np.int32)
        whole.step(action, out)
        for part, (batch, half) in enumerate(halves):
            rows = slice(3 * part, 3 * part + 3)
            batch.step(action[rows], half)
            for field in ("obs", "next_obs", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(half, field), getattr(out, field)[rows])
    assert whole._episode.min() > 16, "every row must outlive its first block of start states"


def test_start_states_are_uniform_and_never_repeat():
    batch, out = ready(512, seed=11)
    starts = [out.obs.copy()]
    for _ in range(40):
        batch.step(np.ones(512, np.int32), out)
        starts.append(out.obs[out.terminated].copy())
    drawn = np.concatenate(starts)
    assert len(np.unique(drawn, axis=0)) == len(drawn)
    np.testing.assert_allclose(drawn.mean(0), 0, atol=0.003)
    np.testing.assert_allclose(drawn.std(0), 0.1 / np.sqrt(12), atol=0.002)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.06
    assert not np.array_equal(ready(512, seed=12)[1].obs, starts[0])


def test_reset_starts_the_same_run_again():
    batch, out = ready(4)
    first = out.obs.copy()
    for _ in range(30):
        batch.step(np.ones(4, np.int32), out)
    batch.reset(out.obs)
    np.testing.assert_array_equal(out.obs, first)


def test_options_and_bad_actions():
    batch, out = ready(2, sutton_barto_reward=True)
    batch.step(np.zeros(2, np.int32), out)
    assert out.reward.tolist() == [0.0, 0.0]
    batch.set_state(np.full((4, 2), 5.0))
    batch.step(np.zeros(2, np.int32), out)
    assert out.reward.tolist() == [-1.0, -1.0]
    with pytest.raises(
        RunError, match=r"environment 1 was given the action 2, .* outside Discrete\(2\)\n  fix: "
    ):
        batch.step(np.array([0, 2], np.int32), out)
