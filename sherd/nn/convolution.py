"""Layers of convolutions, as the processor at hand likes them.

XLA's convolutions on a CPU are several times slower than its matrix products. Where there is a C compiler,
convolutions are kernels of our own (`native`): three quarters of the time of what follows.

A convolution is also one matrix product, of the image's patches, and a patch is a few shifted views of the
image side by side: very few if the stride divides the kernel and the pixels of a stride's square are made
channels. What a layer makes is written in the squares of the next one's stride, which costs nothing, and a
batch goes through in slices that fit the cache. Other processors keep the plain convolution.
"""

from __future__ import annotations

from functools import partial
from itertools import product as pairs
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sherd.nn.native.convolve import convolve
from sherd.nn.native.library import available
from sherd.nn.products import product
from sherd.nn.slices import in_slices, keep

# The patches of a slice may have so many numbers: 16 frames of Atari.
_SLICE_NUMBERS = 1 << 21
# A layer is computed by rows if one in so many is in vain at most.
_ROWS = 16
# XLA computes a stack of so many views together with what is in them.
_FUSED_VIEWS = 8


class Layer(NamedTuple):
    """A convolution's sizes: kernel, stride and the zeros at each side are the same in both directions."""

    channels: int
    size: int
    stride: int
    padding: int = 0


class _Step(NamedTuple):
    """A layer as patches and a product: of an image whose squares of `block` pixels are channels already."""

    block: int
    size: int
    stride: int
    padding: int
    height: int
    width: int


def convolutions(images: jax.Array, weights: Any, layers: tuple[Layer, ...]) -> jax.Array:
    """Convolve, add the bias, rectify, layer after layer: [batch, height, width, channels] to the same.

    Weights are pairs of a kernel [size, size, channels in, channels] and a bias. Bytes are scaled to [0, 1].

    >>> weights = [(jnp.ones((2, 2, 3, 5)), jnp.zeros(5))]
    >>> convolutions(jnp.ones((1, 8, 6, 3)), weights, (Layer(5, 2, 2),)).shape
    (1, 4, 3, 5)
    """
    on_cpu = partial(kernels_in_c if available() else products_of_patches, layers=layers)
    default = partial(plain_convolutions, layers=layers)
    return jax.lax.platform_dependent(images, weights, cpu=on_cpu, default=default)


def plain_convolutions(images: jax.Array, weights: Any, layers: tuple[Layer, ...]) -> jax.Array:
    """The same by XLA's convolution."""
    x = _scaled(images)
    for layer, (kernel, bias) in zip(layers, weights):
        strides, pads = (layer.stride,) * 2, ((layer.padding,) * 2,) * 2
        x = jax.lax.conv_general_dilated(x, kernel, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + bias)
    return x


def kernels_in_c(images: jax.Array, weights: Any, layers: tuple[Layer, ...]) -> jax.Array:
    """The same by kernels in C, which read bytes as they are: their scale is put into the weights."""
    x = images if images.dtype == jnp.uint8 else _scaled(images)
    for layer, (kernel, bias) in zip(layers, weights):
        edge = (layer.padding,) * 2
        x = jnp.pad(x, ((0, 0), edge, edge, (0, 0))) if layer.padding else x
        scaled = kernel * (1.0 / 255.0) if x.dtype == jnp.uint8 else kernel
        x = jax.nn.relu(convolve(x, scaled, layer.stride) + bias)
    return x


def products_of_patches(images: jax.Array, weights: Any, layers: tuple[Layer, ...]) -> jax.Array:
    """The same by matrix products."""
    steps = _steps(images.shape[1], images.shape[2], layers)
    inputs = [images.shape[3], *(layer.channels for layer in layers)]
    numbers = max(s.height * s.width * layer.size**2 * n for s, layer, n in zip(steps, layers, inputs))
    # Powers of two, so that slices of the usual batches leave no rest.
    size = 1 << max(0, (_SLICE_NUMBERS // numbers).bit_length() - 1)
    kernels = [
        (_squares_to_channels(kernel.transpose(3, 0, 1, 2), step.block).reshape(kernel.shape[3], -1).T, bias)
        for (kernel, bias), step in zip(weights, steps)
    ]
    made = in_slices(partial(_convolve, steps=steps), kernels, images, size)
    return made.reshape((images.shape[0], steps[-1].height, steps[-1].width, -1))


def _convolve(kernels: Any, images: jax.Array, steps: tuple[_Step, ...]) -> jax.Array:
    """All layers for one slice: [batch, height, width, channels] of the last."""
    x = _squares_to_channels(images, steps[0].block)
    blocks = [*(step.block for step in steps[1:]), 1]
    for step, block, (kernel, bias) in zip(steps, blocks, kernels):
        made = (_by_rows if _few_more_rows(step) else _by_patches)(x, kernel, step, block)
        made = keep(made + bias)
        x = jax.nn.relu(made).reshape((*made.shape[:3], -1))
    return x


def _steps(height: int, width: int, layers: tuple[Layer, ...]) -> tuple[_Step, ...]:
    """The layers' sizes, their outputs cut to what the next one looks at."""
    steps = []
    for layer in layers:
        size, stride, padding = layer.size, layer.stride, layer.padding
        block = stride if size % stride == 0 and not padding else 1
        height, width = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
        steps.append(_Step(block, size // block, stride // block, padding, height, width))
    for place in range(len(steps) - 2, -1, -1):
        seen, layer = steps[place + 1], layers[place + 1]
        reach = layer.size - 2 * layer.padding
        used = [(side - 1) * layer.stride + reach for side in (seen.height, seen.width)]
        steps[place] = steps[place]._replace(height=used[0], width=used[1])
    return tuple(steps)


def _by_patches(x: jax.Array, kernel: jax.Array, step: _Step, block: int) -> jax.Array:
    """One product: [batch, h, w, block * block, channels], outputs in squares of the next stride."""
    patches = _scaled(_patches(x, step, block))
    return product(patches.reshape(-1, kernel.shape[0]), kernel).reshape((*patches.shape[:4], -1))


def _few_more_rows(step: _Step) -> bool:
    return step.stride == 1 and not step.padding and step.height >= _ROWS * (step.size - 1)


def _by_rows(x: jax.Array, kernel: jax.Array, step: _Step, block: int) -> jax.Array:
    """The same by patches of one row of the kernel, multiplied with all its rows, and a sum.

    A few rows of products are in vain, but patches are smaller and the product is wider: of Atari's first
    layer, forward and gradient take a quarter less.
    """
    rows, columns = step.height + step.size - 1, step.width
    views = [x[:, :rows, left : left + columns] for left in range(step.size)]
    patches = _scaled(jnp.stack(views, axis=3)).reshape(-1, step.size * x.shape[3])
    # Outputs first, as XLA's product likes them in the gradient.
    wide = kernel.T.reshape(-1, step.size, patches.shape[1]).swapaxes(0, 1).reshape(-1, patches.shape[1])
    made = jax.lax.dot_general(patches, wide, (((1,), (1,)), ((), ())))
    made = made.reshape(x.shape[0], rows, columns, step.size, -1)
    shifted = [made[:, row : row + step.height, :, row] for row in range(step.size)]
    squares = _squares_to_channels(sum(shifted[1:], shifted[0]), block)
    return squares.reshape((*squares.shape[:3], block * block, -1))


def _patches(x: jax.Array, step: _Step, block: int) -> jax.Array:
    """What each output looks at [batch, h, w, block * block, ...], outputs in squares of the next stride."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _copied(x, step, block)
    return _stacked(x, step, block, 1)


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _copied(x: jax.Array, step: _Step, block: int) -> jax.Array:
    """Patches of numbers that other layers made.

    XLA makes a stack of few views together with what is in them, number by number, several times each. More
    views it copies as they are, which takes a quarter of the time. The gradient is better off with few.
    """
    views, parts = (block * step.size) ** 2, 1
    while views * parts <= _FUSED_VIEWS and x.shape[3] % (2 * parts) == 0:
        parts *= 2
    return _stacked(x, step, block, parts)


@_copied.defjvp
def _copied_tangent(
    step: _Step, block: int, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    return _copied(primals[0], step, block), _stacked(tangents[0], step, block, 1)


def _stacked(x: jax.Array, step: _Step, block: int, parts: int) -> jax.Array:
    """Patches as a stack of views, each of a part of the channels."""
    edge, jump = (step.padding, step.padding), step.stride * block
    x = jnp.pad(x, ((0, 0), edge, edge, (0, 0))) if step.padding else x
    wide = x.shape[3] // parts

    def every(start: int, count: int) -> slice:
        return slice(start, start + jump * (count - 1) + 1, jump)

    views = [
        x[:, every(top + row, step.height // block), every(left + column, step.width // block), part]
        for top, left in pairs(range(0, jump, step.stride), repeat=2)
        for row, column in pairs(range(step.size), repeat=2)
        for part in (slice(first, first + wide) for first in range(0, x.shape[3], wide))
    ]
    # A stack of views side by side; concatenating them takes XLA three times as long.
    stacked = jnp.stack(views, axis=3)
    return stacked.reshape((*stacked.shape[:3], block * block, -1))


def _squares_to_channels(images: jax.Array, size: int) -> jax.Array:
    """[batch, h * size, w * size, channels] as [batch, h, w, size * size * channels]; a rest is cut off."""
    batch, height, width = images.shape[0], images.shape[1] // size, images.shape[2] // size
    images, channels = images[:, : height * size, : width * size], images.shape[3]
    if packed := images.dtype == jnp.uint8 and channels == 4:
        images, channels = jax.lax.bitcast_convert_type(images, jnp.uint32), 1  # four bytes are moved as one
    split = images.reshape(batch, height, size, width, size, channels)
    moved = split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, height, width, -1)
    if packed:
        moved = jax.lax.bitcast_convert_type(moved, jnp.uint8).reshape(batch, height, width, -1)
    return moved


def _scaled(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32) * (1.0 / 255.0) if x.dtype == jnp.uint8 else x.astype(jnp.float32)
