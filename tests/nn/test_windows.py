"""Returns of replay windows against a slow loop, and the picking of the step they are completed from."""

import jax
import jax.numpy as jnp
import numpy as np

from sherd.nn.returns import n_step_returns
from sherd.nn.windows import pick_step, window_return

LENGTH, DRAWS, ENVS = 5, 40, 3


def windows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (LENGTH, DRAWS, ENVS)
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.15
    assert (terminated & truncated).any()
    assert (~(terminated | truncated)).all(0).any()
    return rng.normal(size=shape).astype(np.float32), terminated, truncated


def test_window_returns_equal_a_loop() -> None:
    reward, terminated, truncated = windows()
    totals, factors = np.zeros((DRAWS, ENVS)), np.zeros((DRAWS, ENVS))
    lasts = np.zeros((DRAWS, ENVS), int)
    for draw, env in np.ndindex(DRAWS, ENVS):
        for k in range(LENGTH):
            at = (k, draw, env)
            totals[draw, env] += 0.9**k * reward[at]
            lasts[draw, env] = k
            factors[draw, env] = 0.0 if terminated[at] else 0.9 ** (k + 1)
            if terminated[at] or truncated[at]:
                break
    total, factor, last = jax.jit(window_return)(reward, terminated, truncated, 0.9)
    np.testing.assert_allclose(total, totals, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(factor, factors, rtol=1e-6)
    np.testing.assert_array_equal(last, lasts)


def test_a_window_is_the_first_n_step_return() -> None:
    reward, terminated, truncated = (x[:, 0] for x in windows())
    next_value = np.random.default_rng(1).normal(size=reward.shape).astype(np.float32)
    total, factor, last = jax.jit(window_return)(reward, terminated, truncated, 0.9)
    expected = n_step_returns(reward, next_value, terminated, terminated | truncated, 0.9, LENGTH)
    found = total + factor * pick_step(next_value, last)
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-6)


def test_one_step_is_picked_for_every_row_of_every_leaf() -> None:
    rng = np.random.default_rng(2)
    tree = {
        "reward": jnp.asarray(rng.normal(size=(LENGTH, DRAWS, ENVS)), jnp.float32),
        "image": jnp.asarray(rng.integers(0, 255, (LENGTH, DRAWS, ENVS, 2, 3)), jnp.uint8),
    }
    last = rng.integers(0, LENGTH, (DRAWS, ENVS))
    found = pick_step(tree, jnp.asarray(last))
    for name, leaf in jax.tree.map(np.asarray, tree).items():
        assert found[name].dtype == leaf.dtype
        picked = np.asarray(found[name])
        for draw, env in np.ndindex(DRAWS, ENVS):
            np.testing.assert_array_equal(picked[draw, env], leaf[last[draw, env], draw, env])
