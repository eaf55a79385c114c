"""Linear heads on a torso's features, plain and noisy."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from sherd.nn.kinds import per_key
from sherd.nn.once import computed_once
from sherd.nn.products import product

Head = dict[str, jax.Array]

# The deviation that noisy layers begin with, as Fortunato et al. (2018) chose it for factorised noise.
_FIRST_NOISE = 0.5


def head(key: jax.Array, width: int, outputs: int, scale: float) -> Head:
    """Fresh parameters of a linear layer: orthogonal columns of this norm, no bias.

    >>> {name: leaf.shape for name, leaf in head(jax.random.key(0), 4, 2, scale=1.0).items()}
    {'kernel': (4, 2), 'bias': (2,)}
    """
    kernel = jax.nn.initializers.orthogonal(scale)(key, (width, outputs), jnp.float32)
    return {"kernel": kernel, "bias": jnp.zeros(outputs, jnp.float32)}


def linear(params: Head, x: jax.Array) -> jax.Array:
    """The layer's outputs [..., outputs] for features [..., width].

    >>> linear({"kernel": jnp.array([[1.0], [2.0]]), "bias": jnp.ones(1)}, jnp.array([3.0, 4.0])).tolist()
    [12.0]
    """
    return _product(x, params["kernel"]) + params["bias"]


def noisy_head(key: jax.Array, width: int, outputs: int) -> Head:
    """Fresh parameters of a noisy linear layer (Fortunato et al., 2018, section 3.2).

    >>> sorted(noisy_head(jax.random.key(0), 4, 2))
    ['bias', 'bias_noise', 'kernel', 'kernel_noise']
    """
    bound = 1 / math.sqrt(width)
    kernel_key, bias_key = jax.random.split(key)
    return {
        "kernel": jax.random.uniform(kernel_key, (width, outputs), jnp.float32, -bound, bound),
        "bias": jax.random.uniform(bias_key, (outputs,), jnp.float32, -bound, bound),
        "kernel_noise": jnp.full((width, outputs), _FIRST_NOISE * bound, jnp.float32),
        "bias_noise": jnp.full(outputs, _FIRST_NOISE * bound, jnp.float32),
    }


def noisy_linear(params: Head, x: jax.Array, keys: jax.Array | None) -> jax.Array:
    """A noisy layer's outputs for features [..., rows, width].

    `keys` is one key whose noise all rows share, keys [rows] with noise for each row, or none: no noise.
    Factorised noise is an outer product, so a row's own noise needs no weights of its own: it scales what
    goes into the product and what comes out of it. Shared noise is cheaper added to the weights.

    >>> layer = noisy_head(jax.random.key(0), 4, 2)
    >>> keys = jax.random.split(jax.random.key(1), 3)
    >>> noisy_linear(layer, jnp.ones((5, 3, 4)), keys).shape
    (5, 3, 2)
    """
    if keys is None:
        return linear(params, x)
    noise_in, noise_out = factorised_noise(keys, *params["kernel"].shape)
    if keys.ndim == 0:
        kernel = params["kernel"] + params["kernel_noise"] * jnp.outer(noise_in, noise_out)
        return _product(x, kernel) + params["bias"] + params["bias_noise"] * noise_out
    noisy = _product(x * noise_in, params["kernel_noise"]) + params["bias_noise"]
    return linear(params, x) + noisy * noise_out


def factorised_noise(keys: jax.Array, width: int, outputs: int) -> tuple[jax.Array, jax.Array]:
    """The two factors of the noise, [*keys, width] and [*keys, outputs]."""
    normal = per_key(lambda key: jax.random.normal(key, (width + outputs,), jnp.float32), keys)
    shaped = computed_once(jnp.sign(normal) * jnp.sqrt(jnp.abs(normal)))
    return shaped[..., :width], shaped[..., width:]


def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x @ kernel` for any leading axes."""
    rows, outputs = x.reshape(-1, x.shape[-1]), kernel.shape[1]
    if outputs == 1:
        # A product with a single column is summed in an order that depends on the number of rows, so that how
        # environments are shared out would show in the last bit. One with two columns is not, on processors
        # with AVX-512; on others the last bit stays open, as for all products of fewer than 16 columns. The
        # gradient keeps the second column: without it XLA fuses what comes before, and rounds otherwise in
        # another program.
        kernel = jnp.pad(kernel, ((0, 0), (0, 1)))
    return product(rows, kernel)[:, :outputs].reshape((*x.shape[:-1], outputs))
