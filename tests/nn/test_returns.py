"""Advantages and returns against RLax and against slow loops from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from sherd.nn.returns import discounted_returns, gae

LENGTH, ENVS = 23, 4


def rollout(seed: int, ends: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(LENGTH + 1, ENVS)).astype(np.float32)
    terminated = (rng.random((LENGTH, ENVS)) < 0.1) & ends
    truncated = (rng.random((LENGTH, ENVS)) < 0.1) & ends
    ended = terminated | truncated
    final = rng.normal(size=(LENGTH, ENVS)).astype(np.float32)
    if ends:
        assert terminated[:-1].any()
        assert (truncated & ~terminated)[:-1].any()
    return {
        "reward": rng.normal(size=(LENGTH, ENVS)).astype(np.float32),
        "value": values[:-1],
        "next_value": np.where(ended, final, values[1:]),
        "terminated": terminated,
        "ended": ended,
    }


def test_gae_equals_rlax_without_truncation() -> None:
    data = rollout(0)
    data["ended"] = data["terminated"]
    data["next_value"][:-1] = data["value"][1:]
    values = np.concatenate([data["value"], data["next_value"][-1:]])
    discounts = 0.97 * (1 - data["terminated"].astype(np.float32))
    estimate = jax.vmap(lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, 0.9, v), 1, 1)
    expected = estimate(jnp.asarray(data["reward"]), jnp.asarray(discounts), jnp.asarray(values))
    np.testing.assert_allclose(gae(**data, discount=0.97, lam=0.9), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lam", [0.0, 0.9, 1.0])
def test_gae_equals_the_sum_of_discounted_errors(lam: float) -> None:
    data, discount = rollout(1), 0.97
    expected = np.zeros((LENGTH, ENVS))
    for env in range(ENVS):
        for t in range(LENGTH):
            weight = 1.0
            for k in range(t, LENGTH):
                future = 0.0 if data["terminated"][k, env] else discount * data["next_value"][k, env]
                expected[t, env] += weight * (data["reward"][k, env] + future - data["value"][k, env])
                if data["ended"][k, env]:
                    break
                weight *= discount * lam
    found = jax.jit(gae)(**data, discount=discount, lam=lam)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_discounted_returns_equal_a_forward_sum() -> None:
    data, discount = rollout(2), 0.9
    del data["value"]
    expected = np.zeros((LENGTH, ENVS))
    for env in range(ENVS):
        for t in range(LENGTH):
            for k in range(t, LENGTH):
                expected[t, env] += discount ** (k - t) * data["reward"][k, env]
                if data["ended"][k, env] or k == LENGTH - 1:
                    if not data["terminated"][k, env]:
                        expected[t, env] += discount ** (k - t + 1) * data["next_value"][k, env]
                    break
    found = discounted_returns(**data, discount=discount)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_full_traces_are_returns_less_values() -> None:
    data = jax.tree.map(jnp.asarray, rollout(3, ends=False))
    advantages = gae(**data, discount=0.95, lam=1.0)
    value = data.pop("value")
    np.testing.assert_allclose(
        advantages + value, discounted_returns(**data, discount=0.95), rtol=1e-4, atol=1e-5
    )
