"""Convolutions made of matrix products, and those in C, equal XLA's own, values and gradients."""

import jax
import numpy as np
import pytest

from sherd.nn import convolution
from sherd.nn.convolution import (
    Layer,
    convolutions,
    kernels_in_c,
    plain_convolutions,
    products_of_patches,
)
from sherd.nn.native.library import available

IN_C = pytest.param(
    kernels_in_c, marks=pytest.mark.skipif(not available(), reason="no C compiler, or no AVX2")
)
WAYS = pytest.mark.parametrize("way", [products_of_patches, IN_C])

STACKS = {
    "nature": (84, 4, (Layer(8, 8, 4), Layer(6, 4, 2), Layer(5, 3, 1))),
    "stride that does not divide": (17, 3, (Layer(4, 3, 2), Layer(5, 3, 2))),
    "rows that nobody looks at": (23, 2, (Layer(4, 4, 2), Layer(5, 4, 4))),
    "padded": (6, 3, (Layer(4, 3, 1, 1), Layer(5, 3, 1, 1))),
}


def _given(side, channels, layers, batch, bytes_):
    keys = jax.random.split(jax.random.key(0), 2 + len(layers))
    shape = (batch, side, side + 1, channels)
    images = jax.random.randint(keys[0], shape, 0, 255).astype("uint8" if bytes_ else "float32")
    images = images if bytes_ else images / 255
    weights = []
    for key, layer in zip(keys[1:], layers):
        drawn = jax.random.normal(key, (layer.size, layer.size, channels, layer.channels))
        weights.append((drawn / layer.size, drawn[0, 0, 0]))
        channels = layer.channels
    return images, weights


def _made(function, images, weights, layers):
    """What a function makes of images, and the gradients of its weights."""

    def total(weights):
        made = function(images, weights, layers)
        return (made * np.cos(np.arange(made.size)).reshape(made.shape)).sum(), made

    (_, made), gradients = jax.jit(jax.value_and_grad(total, has_aux=True))(weights)
    return made, jax.tree.leaves(gradients)


@WAYS
@pytest.mark.parametrize("name", STACKS)
def test_equals_the_plain_convolution(name, way, monkeypatch):
    side, channels, layers = STACKS[name]
    largest = _largest_patches(side, channels, layers)
    # Five images: in one slice, and in slices of two with a rest.
    for numbers, bytes_ in ((1 << 24, False), (2 * largest, True)):
        monkeypatch.setattr(convolution, "_SLICE_NUMBERS", numbers)
        images, weights = _given(side, channels, layers, batch=5, bytes_=bytes_)
        made, gradients = _made(way, images, weights, layers)
        expected, theirs = _made(plain_convolutions, images, weights, layers)
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)
        for one, two in zip(gradients, theirs):
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)


def _largest_patches(side, channels, layers):
    steps = convolution._steps(side, side + 1, layers)
    inputs = [channels, *(layer.channels for layer in layers)]
    return max(s.height * s.width * layer.size**2 * n for s, layer, n in zip(steps, layers, inputs))


@WAYS
def test_floats_have_gradients_too(way):
    layers = STACKS["nature"][2]
    images, weights = _given(84, 4, layers, batch=2, bytes_=False)

    def by(function):
        return jax.jit(jax.grad(lambda images: function(images, weights, layers).sum()))(images)

    np.testing.assert_allclose(by(way), by(plain_convolutions), rtol=1e-3, atol=1e-3)


@WAYS
def test_forward_mode_and_a_population_too(way):
    layers = Layer(8, 4, 2), Layer(6, 4, 2)  # by rows, then by patches of many views
    images, weights = _given(40, 4, layers, batch=2, bytes_=True)
    both = jax.tree.map(lambda leaf: np.stack([leaf, -leaf]), weights)

    def by(function):
        def made(weights):
            return function(images, weights, layers).sum()

        along = jax.jit(lambda weights: jax.jvp(made, (weights,), (weights,)))(weights)
        return *along, jax.tree.leaves(jax.jit(jax.vmap(jax.grad(made)))(both))

    for one, two in zip(jax.tree.leaves(by(way)), jax.tree.leaves(by(plain_convolutions))):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)


def test_kernels_in_c_are_taken_where_there_are_some(monkeypatch):
    images, weights = _given(23, 2, STACKS["rows that nobody looks at"][2], batch=2, bytes_=True)
    layers = STACKS["rows that nobody looks at"][2]

    def lowered():
        return jax.jit(lambda *given: convolutions(*given, layers)).lower(images, weights).as_text()

    assert ("sherd_convolve" in lowered()) == available()
    monkeypatch.setattr(convolution, "available", lambda: False)
    assert "sherd_convolve" not in lowered()
