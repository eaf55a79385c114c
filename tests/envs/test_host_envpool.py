"""EnvPool, made to reset in the step in which an episode ends."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from sherd.envs import describe, make_host
from sherd.envs.host.seeding import env_seeds
from sherd.errors import UsageError
from sherd.spaces import step_buffers

envpool = pytest.importorskip("envpool")


def ready(env_id, num_envs, seed=0, first_index=0, **options):
    batch = make_host(env_id, num_envs, seed, first_index, **options)
    out = step_buffers(batch.spec, num_envs)
    batch.reset(out.obs)
    return batch, out


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_no_action_is_lost_and_both_observations_are_known():
    batch, out = ready("envpool/CartPole-v1", 4, seed=2)
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=env_seeds(2, 0, 4))
    np.testing.assert_array_equal(out.obs, pool.reset()[0])
    ended = np.zeros(4, bool)
    ends = 0
    for _ in range(80):
        before = out.obs.copy()
        batch.step(np.ones(4, np.int32), out)
        # In every row, also just after an end, the cart moves by its old speed: a step was really taken.
        np.testing.assert_allclose(out.next_obs[:, 0], before[:, 0] + 0.02 * before[:, 1], atol=1e-6)
        ended = out.terminated | out.truncated
        ends += ended.sum()
        np.testing.assert_array_equal(out.obs[~ended], out.next_obs[~ended])
        assert (np.abs(out.obs[ended]) <= 0.05).all()
        assert (np.abs(out.next_obs[ended][:, 2]) > 0.2).all()
    assert ends > 10


def test_splitting_a_batch_changes_nothing():
    whole, out = ready("envpool/CartPole-v1", 6, seed=3)
    halves = [ready("envpool/CartPole-v1", 3, 3, first) for first in (0, 3)]
    generator = np.random.default_rng(0)
    for _ in range(100):
        action = generator.integers(0, 2, 6).astype(np.int32)
        whole.step(action, out)
        for part, (batch, half) in enumerate(halves):
            rows = slice(3 * part, 3 * part + 3)
            batch.step(action[rows], half)
            for field in ("obs", "next_obs", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(half, field), getattr(out, field)[rows])


def test_truncation_is_not_termination():
    batch, out = ready("envpool/Pendulum-v1", 2, max_episode_steps=5)
    for step in range(1, 11):
        batch.step(np.zeros((2, 1), np.float32), out)
        assert out.truncated.all() == (step % 5 == 0)
        assert not out.terminated.any()


def test_mujoco_in_envpool_is_carried_in_float32():
    batch, out = ready("envpool/HalfCheetah-v4", 2)
    batch.step(np.zeros((2, 6), np.float32), out)
    assert out.obs.dtype == np.float32
    assert np.isfinite(out.obs).all()
    assert not np.array_equal(out.obs[0], out.obs[1])


def test_an_unknown_id_is_corrected():
    with pytest.raises(UsageError, match="did you mean 'envpool/CartPole-v1'"):
        describe("envpool/CartPol-v1")


def test_envpool_does_without_jax():
    code = (
        "import sys, numpy as np; from sherd.envs import make_host; from sherd.spaces import step_buffers\n"
        "batch = make_host('envpool/CartPole-v1', 2, 0); out = step_buffers(batch.spec, 2)\n"
        "batch.reset(out.obs); batch.step(np.zeros(2, np.int32), out); assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
