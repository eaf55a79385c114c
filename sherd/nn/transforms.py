"""Value rescaling: a squashing of returns that keeps very different games on one scale, and its inverse.

Pohlen et al. (2018), as R2D2 uses it (Kapturowski et al., 2019). Both are written without the differences of
nearly equal numbers that the textbook forms contain, which cost most of the digits of a float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rescale(x: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """The signed hyperbola sign(x) (sqrt(|x| + 1) - 1) + epsilon x.

    >>> rescale(jnp.array([0.0, 8.0, -8.0]), epsilon=0.0).tolist()
    [0.0, 2.0, -2.0]
    """
    return x / (jnp.sqrt(jnp.abs(x) + 1) + 1) + epsilon * x


def unscale(x: jax.Array, epsilon: float = 1e-3) -> jax.Array:
    """The inverse of `rescale`.

    >>> unscale(jnp.array([0.0, 2.0, -2.0]), epsilon=0.0).tolist()
    [0.0, 8.0, -8.0]
    """
    # Of a value y >= 0 it is given sqrt(y + 1) - 1 + epsilon y; `share` of that is sqrt(y + 1) - 1.
    size = jnp.abs(x)
    root = jnp.sqrt(1 + 4 * epsilon * (epsilon + 1 + size))
    share = (2 - 4 * epsilon / (root + 1 + 2 * epsilon)) / (root + 1)
    return x * share * (share * size + 2)
