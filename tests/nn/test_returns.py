"""Advantages and returns against RLax and against slow loops from the formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from sherd.errors import UsageError
from sherd.nn.returns import discounted_returns, gae, n_step_returns, vtrace

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


@pytest.mark.parametrize("n", [1, 3, LENGTH, 99])
def test_n_step_returns_equal_a_forward_sum(n: int) -> None:
    data, discount = rollout(4), 0.9
    del data["value"]
    expected = np.zeros((LENGTH, ENVS))
    for env in range(ENVS):
        for t in range(LENGTH):
            for k in range(t, LENGTH):
                expected[t, env] += discount ** (k - t) * data["reward"][k, env]
                if data["terminated"][k, env]:
                    break
                if data["ended"][k, env] or k == LENGTH - 1 or k == t + n - 1:
                    expected[t, env] += discount ** (k - t + 1) * data["next_value"][k, env]
                    break
    found = n_step_returns(**data, discount=discount, n=n)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3])
def test_n_step_returns_equal_rlax_without_truncation(n: int) -> None:
    data = rollout(5)
    discounts = 0.97 * (1 - data["terminated"].astype(np.float32))
    estimate = jax.vmap(lambda r, d, v: rlax.n_step_bootstrapped_returns(r, d, v, n), 1, 1)
    expected = estimate(*(jnp.asarray(x) for x in (data["reward"], discounts, data["next_value"])))
    found = n_step_returns(
        data["reward"], data["next_value"], data["terminated"], data["terminated"], 0.97, n
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_n_step_returns_of_no_steps_are_refused() -> None:
    data = rollout(5)
    del data["value"]
    with pytest.raises(UsageError, match="1 or more, not 0"):
        n_step_returns(**data, discount=0.9, n=0)


def log_ratios(seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).normal(scale=0.8, size=(LENGTH, ENVS)).astype(np.float32)
    assert (found > 0.3).any()
    assert (found < -0.3).any()
    return found


@pytest.mark.parametrize(("lam", "clip_rho", "clip_pg_rho"), [(1.0, 1.0, 1.0), (0.9, 1.3, 0.7)])
def test_vtrace_equals_rlax_without_truncation(lam: float, clip_rho: float, clip_pg_rho: float) -> None:
    data, log_ratio = rollout(6), log_ratios(6)
    data["ended"] = data["terminated"]
    data["next_value"][:-1] = data["value"][1:]
    discounts = 0.97 * (1 - data["terminated"].astype(np.float32))
    arrays = (data["value"], data["next_value"], data["reward"], discounts, np.exp(log_ratio))

    def estimate(*columns):
        return rlax.vtrace_td_error_and_advantage(*columns, lam, clip_rho, clip_pg_rho)

    expected = jax.vmap(estimate, 1, 1)(*map(jnp.asarray, arrays))
    found = vtrace(log_ratio, **data, discount=0.97, lam=lam, clip_rho=clip_rho, clip_pg_rho=clip_pg_rho)
    np.testing.assert_allclose(found.target, expected.errors + data["value"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.advantage, expected.pg_advantage, rtol=1e-4, atol=1e-5)


def test_vtrace_equals_the_sum_of_the_paper() -> None:
    """Equation 1 term by term, in episodes that end in both ways, with all three clips apart."""
    data, log_ratio, discount = rollout(7), log_ratios(7), 0.97
    clips = {"clip_rho": 1.4, "clip_c": 0.8, "clip_pg_rho": 1.1}
    ratio = np.exp(log_ratio.astype(np.float64))
    future = discount * np.where(data["terminated"], 0.0, data["next_value"])
    error = np.minimum(clips["clip_rho"], ratio) * (data["reward"] + future - data["value"])
    target = data["value"].astype(np.float64)
    for env in range(ENVS):
        for t in range(LENGTH):
            weight = 1.0
            for k in range(t, LENGTH):
                target[t, env] += weight * error[k, env]
                if data["ended"][k, env]:
                    break
                weight *= discount * min(clips["clip_c"], ratio[k, env])
    after = data["next_value"].astype(np.float64)
    after[:-1] = np.where(data["ended"][:-1], after[:-1], target[1:])
    after = np.where(data["terminated"], 0.0, after)
    gain = data["reward"] + discount * after - data["value"]
    found = vtrace(log_ratio, **data, discount=discount, **clips)
    np.testing.assert_allclose(found.target, target, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.advantage, np.minimum(1.1, ratio) * gain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lam", [0.8, 1.0])
def test_vtrace_on_policy_is_gae_and_carries_no_gradient(lam: float) -> None:
    data = jax.tree.map(jnp.asarray, rollout(8))
    still = jnp.zeros((LENGTH, ENVS))
    found = vtrace(still, **data, discount=0.95, lam=lam)
    advantage = gae(**data, discount=0.95, lam=lam)
    np.testing.assert_allclose(found.advantage, advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.target, advantage + data["value"], rtol=1e-4, atol=1e-5)

    def total(value, log_ratio):
        return sum(x.sum() for x in vtrace(log_ratio, **(data | {"value": value}), discount=0.95))

    for gradient in jax.grad(total, argnums=(0, 1))(data["value"], still):
        np.testing.assert_array_equal(gradient, 0.0)
