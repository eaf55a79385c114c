"""Distributions over values on a fixed support: C51 (Bellemare et al., 2017)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from sherd.errors import UsageError


def support(low: float, high: float, atoms: int) -> np.ndarray:
    """The values that a distribution's atoms stand for, equally far apart.

    >>> support(-1.0, 1.0, 3).tolist()
    [-1.0, 0.0, 1.0]
    """
    if atoms < 2 or not low < high:
        raise UsageError(
            f"a distribution of {atoms} atoms from {low} to {high} cannot hold a value.\n"
            "  fix: give two atoms or more, and a lowest value below the highest"
        )
    return np.linspace(low, high, atoms, dtype=np.float32)


def project(
    target_support: jax.Array, probabilities: jax.Array, support: jax.Array | np.ndarray
) -> jax.Array:
    """Probabilities of other values [..., atoms], moved to the atoms of the support.

    A value beyond the support counts as the end nearest to it; one between two atoms is shared by them,
    the nearer getting more.

    >>> atoms = support(0.0, 2.0, 3)
    >>> project(jnp.array([0.25, 1.0, 9.0]), jnp.array([0.4, 0.4, 0.2]), atoms).round(3).tolist()
    [0.3..., 0.5, 0.2...]
    """
    support = jnp.asarray(support)
    spacing = (support[-1] - support[0]) / (support.shape[0] - 1)
    values = jnp.clip(target_support, support[0], support[-1])
    # [..., from, to], summed over an axis that is not the last: a CPU adds whole vectors, 6 times faster.
    distance = jnp.abs(values[..., None] - support) / spacing
    return jnp.sum(jnp.maximum(1 - distance, 0) * probabilities[..., None], axis=-2)


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """The loss [...] of logits [..., atoms] that should give these probabilities, which carry no gradient.

    >>> cross_entropy(jnp.zeros(4), jnp.array([1.0, 0.0, 0.0, 0.0])).round(3).item()
    1.386...
    """
    return -jnp.sum(jax.lax.stop_gradient(target) * jax.nn.log_softmax(logits), axis=-1)


def mean(logits: jax.Array, support: jax.Array | np.ndarray) -> jax.Array:
    """The expected value [...] of distributions given by logits [..., atoms].

    >>> mean(jnp.zeros((2, 3)), support(0.0, 4.0, 3)).round(3).tolist()
    [2.0, 2.0]
    """
    return jnp.sum(jax.nn.softmax(logits) * support, axis=-1)
