"""Running statistics against NumPy over all the data, and against slow loops."""

import jax.numpy as jnp
import numpy as np
from gymnasium.wrappers.utils import RunningMeanStd

from sherd.nn.statistics import initial_moments, normalise, scale_rewards, update_moments


def test_updates_equal_statistics_of_all_the_data() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(3 * i, 1 + i, (7, 4, 3)).astype(np.float32) for i in range(5)]
    moments = initial_moments({"a": np.zeros(3, np.float32)})
    reference = RunningMeanStd(epsilon=1e-9, shape=(3,), dtype=np.float64)
    for batch in batches:
        moments = update_moments(moments, {"a": jnp.asarray(batch)})
        reference.update(batch.reshape(-1, 3))
    everything = np.concatenate([batch.reshape(-1, 3) for batch in batches])
    assert moments.count == len(everything)
    for mean, var in ((everything.mean(0), everything.var(0)), (reference.mean, reference.var)):
        np.testing.assert_allclose(moments.mean["a"], mean, rtol=1e-4)
        np.testing.assert_allclose(moments.var["a"], var, rtol=1e-4)
    normal = normalise(moments, {"a": jnp.asarray(everything)})["a"]
    np.testing.assert_allclose(np.mean(normal, 0), 0, atol=1e-4)
    np.testing.assert_allclose(np.std(normal, 0), 1, rtol=1e-4)


def test_integers_and_the_action_mask_pass_through() -> None:
    rng = np.random.default_rng(0)
    lead = (6, 2)
    batch = {
        "image": jnp.asarray(rng.integers(0, 255, (*lead, 5, 5)), jnp.uint8),
        "room": jnp.asarray(rng.integers(0, 4, lead), jnp.int32),
        "action_mask": jnp.asarray(rng.integers(0, 2, (*lead, 3)), jnp.float32),
        "nested": (jnp.asarray(rng.normal(9, 1, (*lead, 2)), jnp.float32),),
    }
    sample = {
        "image": np.zeros((5, 5), np.uint8),
        "room": np.zeros((), np.int32),
        "action_mask": np.zeros(3, np.float32),
        "nested": (np.zeros(2, np.float32),),
    }
    moments = update_moments(initial_moments(sample), batch)
    found = normalise(moments, batch)
    for name in ("image", "room", "action_mask"):
        assert found[name].dtype == batch[name].dtype
        np.testing.assert_array_equal(found[name], batch[name])
        assert moments.mean[name].shape == ()
    assert abs(float(found["nested"][0].mean())) < 1e-4


def test_unseen_statistics_change_nothing_and_outliers_are_clipped() -> None:
    moments = initial_moments(np.zeros(2, np.float32))
    found = normalise(moments, jnp.array([[0.5, -3.0], [50.0, -50.0]]), clip=10.0)
    np.testing.assert_allclose(found, [[0.5, -3.0], [10.0, -10.0]], rtol=1e-6)


def test_reward_scale_equals_a_slow_loop_over_two_rollouts() -> None:
    rng = np.random.default_rng(0)
    discount, length, envs = 0.9, 11, 3
    moments, accumulated = initial_moments(np.zeros((), np.float32)), jnp.zeros(envs)
    running, history = np.zeros(envs), []
    for _ in range(2):
        reward = rng.normal(1, 2, (length, envs)).astype(np.float32)
        ended = rng.random((length, envs)) < 0.2
        for t in range(length):
            for env in range(envs):
                running[env] = running[env] * discount + reward[t, env]
                history.append(running[env])
                if ended[t, env]:
                    running[env] = 0.0
        accumulated, moments, scaled = scale_rewards(
            moments, accumulated, jnp.asarray(reward), jnp.asarray(ended), discount
        )
        np.testing.assert_allclose(accumulated, running, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(moments.var, np.var(history), rtol=1e-5)
        np.testing.assert_allclose(scaled, reward / np.sqrt(np.var(history) + 1e-8), rtol=1e-5)


def test_scaled_rewards_are_clipped_and_finite_without_variance() -> None:
    moments, no = initial_moments(np.zeros((), np.float32)), jnp.zeros((2, 1), bool)
    _, _, scaled = scale_rewards(moments, jnp.zeros(1), jnp.zeros((2, 1)), no, 0.0)
    np.testing.assert_array_equal(scaled, np.zeros((2, 1)))
    _, _, scaled = scale_rewards(moments, jnp.zeros(1), jnp.full((2, 1), 5.0), no, 0.0)
    np.testing.assert_array_equal(scaled, np.full((2, 1), 10.0))
