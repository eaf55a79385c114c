"""Convolutions made of matrix products equal XLA's own, values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.nn.convolution import convolve, product_of_patches

LAYERS = [(84, 4, 8, 4, "VALID"), (20, 32, 4, 2, "VALID"), (9, 8, 3, 1, "VALID"), (13, 3, 3, 2, "VALID")]
LAYERS += [(6, 3, 3, 1, "SAME"), (11, 2, 4, 2, "SAME")]


@pytest.mark.parametrize(("side", "channels", "size", "stride", "padding"), LAYERS)
def test_equals_the_plain_convolution(side, channels, size, stride, padding):
    keys = jax.random.split(jax.random.key(0), 3)
    images = jax.random.normal(keys[0], (2, side, side + 1, channels))
    kernel = jax.random.normal(keys[1], (size, size, channels, 5))
    numbers = jax.lax.conv_dimension_numbers(images.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))

    def plain(images, kernel):
        return jax.lax.conv_general_dilated(
            images, kernel, (stride, stride), padding, dimension_numbers=numbers
        )

    def ours(images, kernel):
        return convolve(images, kernel, (stride, stride), padding, dimension_numbers=numbers)

    expected = plain(images, kernel)
    np.testing.assert_allclose(ours(images, kernel), expected, rtol=1e-4, atol=1e-4)
    if padding == "VALID":
        np.testing.assert_allclose(
            product_of_patches(images, kernel, (stride, stride)), expected, rtol=1e-4, atol=1e-4
        )
    weight = jax.random.normal(keys[2], expected.shape)
    gradients = [
        jax.grad(lambda i, k, f=f: (f(i, k) * weight).sum(), argnums=(0, 1))(images, kernel)
        for f in (plain, ours)
    ]
    for one, two in zip(*gradients):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)


def test_a_rectangular_stride_falls_back():
    images, kernel = jnp.ones((1, 8, 8, 1)), jnp.ones((2, 2, 1, 1))
    numbers = jax.lax.conv_dimension_numbers(images.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
    assert convolve(images, kernel, (2, 1), "VALID", dimension_numbers=numbers).shape == (1, 4, 7, 1)
