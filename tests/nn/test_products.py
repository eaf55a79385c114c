"""Products and slices with gradients of their own mean what `@` and one whole batch mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.nn.encoders import MLP, dense
from sherd.nn.products import product
from sherd.nn.slices import in_slices

SHAPES = {
    "few rows": (3, 8, 5),
    "narrow inputs": (300, 4, 8),
    "narrow outputs": (300, 8, 2),
    "square": (300, 8, 8),
    "a head": (256, 200, 3),
    "one output": (256, 200, 1),
    "one output, few rows": (3, 8, 1),
    "narrow, with fewer rows": (128, 8, 2),
    "square, with fewer rows": (128, 8, 8),
    "wide, with hardly more rows": (300, 160, 40),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_product_is_a_product_in_every_derivative(shape):
    rows, width, outputs = shape
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(keys[0], (rows, width)), jax.random.normal(keys[1], (width, outputs))
    weight = jax.random.normal(keys[2], (rows, outputs))

    def cost(multiply):
        return lambda x, kernel: (jnp.tanh(multiply(x, kernel)) * weight).sum()

    ours, plain = cost(product), cost(jnp.matmul)
    for way in (
        lambda f: f(x, kernel),
        lambda f: jax.grad(f, argnums=(0, 1))(x, kernel),
        lambda f: jax.jvp(f, (x, kernel), (x, kernel)),
        lambda f: jax.jvp(jax.grad(f, argnums=1), (x, kernel), (x, kernel)),
        lambda f: jax.vmap(jax.grad(f, argnums=1), (None, 0))(x, jnp.stack([kernel, -kernel])),
    ):
        for one, two in zip(jax.tree.leaves(way(ours)), jax.tree.leaves(way(plain))):
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "width"), [(4096, 64), (256, 256)])
def test_the_narrower_operand_is_transposed_before_it_is_multiplied(rows, width):
    x, kernel = jnp.ones((rows, width)), jnp.ones((width, 8))
    gradient = jax.jit(jax.grad(lambda kernel: jnp.tanh(product(x, kernel)).sum()))
    text = gradient.lower(kernel).as_text()
    assert "optimization_barrier" in text, "XLA would fold the transposition into the product again"


@pytest.mark.parametrize("rows", [1, 7, 8, 20, 32])
def test_slices_equal_the_whole(rows):
    keys = jax.random.split(jax.random.key(rows), 3)
    weights = [
        (jax.random.normal(keys[0], (3, 6)), jnp.ones(6)),
        (jax.random.normal(keys[1], (6, 2)), jnp.ones(2)),
    ]
    x = jax.random.normal(keys[2], (rows, 3))

    def whole(weights, x):
        return dense(weights, x, jnp.tanh)

    def sliced(weights, x):
        return in_slices(whole, weights, x, 8)

    np.testing.assert_allclose(sliced(weights, x), whole(weights, x), rtol=1e-5, atol=1e-6)
    gradients = [
        jax.tree.leaves(jax.grad(lambda w, x, f=f: jnp.square(f(w, x)).sum(), argnums=(0, 1))(weights, x))
        for f in (sliced, whole)
    ]
    for one, two in zip(*gradients):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_a_large_batch_passes_a_network_whole():
    """In slices one core is idle: updates take up to 2.7 times as long (docs/benchmarks.md)."""
    network = MLP((8,))
    params = network.init(jax.random.key(0), jnp.zeros((1, 3)))
    assert "while" not in jax.jit(network.apply).lower(params, jnp.ones((65_536, 3))).as_text()
