"""Noisy layers against weights that carry the noise, row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.nn.heads import Head, factorised_noise, head, linear, noisy_head, noisy_linear

ROWS, WIDTH = 5, 6


def layer(outputs: int) -> tuple[Head, jax.Array]:
    params = noisy_head(jax.random.key(0), WIDTH, outputs)
    # Deviations as learning would leave them: each its own.
    spread = jax.random.uniform(jax.random.key(1), (WIDTH, outputs), minval=0.1)
    params |= {"kernel_noise": spread, "bias_noise": spread[0]}
    return params, jax.random.normal(jax.random.key(2), (ROWS, WIDTH))


def with_noisy_weights(params: Head, x: jax.Array, key: jax.Array) -> np.ndarray:
    """Equations 9 to 11 of Fortunato et al. (2018), with the noise in the weights."""
    noise_in, noise_out = (
        np.asarray(part, np.float64) for part in factorised_noise(key, *params["kernel"].shape)
    )
    kernel = params["kernel"] + params["kernel_noise"] * np.outer(noise_in, noise_out)
    return np.asarray(x) @ kernel + params["bias"] + params["bias_noise"] * noise_out


@pytest.mark.parametrize("outputs", [1, 3])
def test_noise_is_that_of_noisy_weights(outputs: int) -> None:
    params, x = layer(outputs)
    keys = jax.random.split(jax.random.key(3), ROWS)
    shared = noisy_linear(params, x, keys[0])
    own = noisy_linear(params, jnp.stack([x, 2 * x]), keys)
    np.testing.assert_allclose(shared, with_noisy_weights(params, x, keys[0]), rtol=1e-4, atol=1e-5)
    for row in range(ROWS):
        for time in range(2):
            expected = with_noisy_weights(params, (1 + time) * x[row], keys[row])
            np.testing.assert_allclose(own[time, row], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(noisy_linear(params, x, None), linear(params, x))


def test_factors_are_signed_roots_of_normal_numbers() -> None:
    parts = factorised_noise(jax.random.split(jax.random.key(0), 400), WIDTH, 3)
    for part, width in zip(parts, (WIDTH, 3)):
        assert part.shape == (400, width)
        normal = np.sign(part) * np.square(part)
        assert abs(normal.mean()) < 0.1
        assert normal.std() == pytest.approx(1, abs=0.1)
    assert abs(np.corrcoef(parts[0][:, 0], parts[1][:, 0])[0, 1]) < 0.2


def test_first_parameters_are_those_of_the_paper() -> None:
    params = noisy_head(jax.random.key(0), 100, 400)
    for name in ("kernel", "bias"):
        assert np.abs(params[name]).max() == pytest.approx(0.1, rel=0.02)
        assert np.std(params[name]) == pytest.approx(0.1 / np.sqrt(3), rel=0.1)
        np.testing.assert_allclose(params[f"{name}_noise"], 0.05)


def test_a_single_column_agrees_for_any_number_of_rows() -> None:
    """To the last bits: without AVX-512 XLA sums fewer than 16 columns in another order for few rows."""
    params, x = head(jax.random.key(0), 64, 1, scale=1.0), jax.random.normal(jax.random.key(1), (32, 64))
    whole = np.asarray(jax.jit(linear)(params, x))
    for rows in (2, 8):
        np.testing.assert_allclose(jax.jit(linear)(params, x[:rows]), whole[:rows], rtol=1e-6)
