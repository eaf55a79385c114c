"""Noise that is broadcast is drawn once, not once for every element of what it is broadcast to."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from sherd.author.randomness import as_keys
from sherd.nn.heads import noisy_head, noisy_linear
from sherd.nn.noise import batch_noise
from sherd.nn.once import computed_once


def test_numbers_and_gradients_are_the_same():
    x = jnp.array([[1.5, -0.0], [jnp.nan, jnp.inf]])
    assert np.asarray(jax.jit(computed_once)(x)).tobytes() == np.asarray(x).tobytes()
    assert jax.grad(lambda x: (3 * computed_once(x)).sum())(jnp.ones(2)).tolist() == [3, 3]
    assert jax.vmap(computed_once)(jnp.arange(3)).tolist() == [0, 1, 2]
    assert computed_once(jnp.zeros((0, 2))).shape == (0, 2)


def test_noise_for_a_batch_is_what_each_environment_draws():
    keys = jax.random.split(jax.random.key(0), 3)
    noise = batch_noise(gym_spaces.Box(-1, 1, (2,)), keys, 5)
    for env, key in enumerate(keys):
        np.testing.assert_array_equal(noise[:, env], jax.random.normal(key, (5, 2)))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="how XLA fuses on a CPU")
def test_no_kernel_as_large_as_the_weights_draws():
    layer = noisy_head(jax.random.key(0), 96, 80)

    def apply(layer, x, bits):
        return noisy_linear(layer, x, as_keys(bits))

    compiled = jax.jit(apply).lower(layer, jnp.ones((5, 96)), jnp.zeros(2, jnp.uint32)).compile().as_text()
    # A round of the generator rotates by shifting: no computation with a result of [96, 80] may do so.
    computations = re.split(r"\n\n", compiled)
    large = [text for text in computations if re.search(r"ROOT \S+ = f32\[96,80\]", text)]
    assert large
    assert not any("shift-right-logical" in text for text in large)
