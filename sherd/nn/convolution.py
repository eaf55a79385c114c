"""Convolution, as the processor at hand likes it.

XLA's convolutions on a CPU are several times slower than its matrix products, and far slower still in the
loops of an update: PPO on Atari took minutes an iteration, and takes seconds this way. A convolution is also
one matrix product, of the image's patches, and a patch is a few shifted views of the image side by side: very
few if the stride divides the kernel and the pixels of a stride's square are made channels. Other processors
keep the plain convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def convolve(
    images: jax.Array,
    kernel: jax.Array,
    window_strides: Sequence[int],
    padding: Any,
    **plain: Any,
) -> jax.Array:
    """A stand-in for `jax.lax.conv_general_dilated` on images [batch, height, width, channels].

    >>> images, kernel = jnp.ones((1, 4, 4, 2)), jnp.ones((2, 2, 2, 3))
    >>> numbers = jax.lax.conv_dimension_numbers(images.shape, kernel.shape, ("NHWC", "HWIO", "NHWC"))
    >>> convolve(images, kernel, (2, 2), "VALID", dimension_numbers=numbers).shape
    (1, 2, 2, 3)
    """
    strides = tuple(window_strides)
    pads = jax.lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], strides, padding)

    def by_convolution(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(images, kernel, strides, pads, **plain)

    def by_products(images: jax.Array, kernel: jax.Array) -> jax.Array:
        padded = jnp.pad(images, ((0, 0), *pads, (0, 0))) if any(map(any, pads)) else images
        return product_of_patches(padded, kernel, strides)

    if strides[0] != strides[1]:
        return by_convolution(images, kernel)
    return jax.lax.platform_dependent(images, kernel, cpu=by_products, default=by_convolution)


def product_of_patches(images: jax.Array, kernel: jax.Array, strides: tuple[int, ...]) -> jax.Array:
    """A convolution without padding as one matrix product."""
    stride = strides[0]
    height, width = ((side - size) // stride + 1 for side, size in zip(images.shape[1:3], kernel.shape[:2]))
    if stride > 1 and kernel.shape[0] % stride == 0 and kernel.shape[1] % stride == 0:
        rows, columns = (n * stride + k - stride for n, k in zip((height, width), kernel.shape[:2]))
        images = _squares_to_channels(images[:, :rows, :columns], stride)
        kernel = _squares_to_channels(jnp.moveaxis(kernel, 3, 0), stride)
        kernel, stride = jnp.moveaxis(kernel, 0, 3), 1
    patches = [
        images[:, row : row + stride * height : stride, column : column + stride * width : stride]
        for row in range(kernel.shape[0])
        for column in range(kernel.shape[1])
    ]
    return jnp.concatenate(patches, axis=-1) @ kernel.reshape(-1, kernel.shape[3])


def _squares_to_channels(images: jax.Array, size: int) -> jax.Array:
    """[batch, h * size, w * size, channels] as [batch, h, w, size * size * channels]."""
    batch, height, width, channels = images.shape
    split = images.reshape(batch, height // size, size, width // size, size, channels)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height // size, width // size, -1)
