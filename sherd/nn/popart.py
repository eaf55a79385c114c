"""PopArt: value targets on a scale of their own, learnt while it changes (van Hasselt et al., 2016).

A value head learns normalised targets. *Art* adapts the mean and deviation by which they are normalised;
*Pop* rescales the head at the same moment, so that what it says in the targets' own units is preserved.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from sherd.author import reduce
from sherd.nn.heads import Head

_SMALLEST, _LARGEST = 1e-4, 1e6


class Scale(NamedTuple):
    """How often targets were seen, and their running mean and deviation."""

    updates: jax.Array
    mean: jax.Array
    std: jax.Array


def initial_scale() -> Scale:
    """The scale on which normalising changes nothing.

    >>> [leaf.item() for leaf in initial_scale()]
    [0, 0.0, 1.0]
    """
    return Scale(jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.ones(()))


def update_scale(scale: Scale, targets: jax.Array, step: float = 3e-4, debias: bool = True) -> Scale:
    """The scale after seeing targets [time, env], those of all replicas together.

    `step` is the weight of the newest targets. With `debias` the first ones weigh as much as all later
    ones until `1 / step` updates have been made, rather than being outweighed by the initial scale.

    >>> seen = update_scale(initial_scale(), jnp.array([[1.0, 3.0]]))
    >>> [leaf.item() for leaf in seen]
    [1, 2.0, 1.0]
    """
    updates = scale.updates + 1
    weight = jnp.maximum(step, 1 / updates) if debias else step
    mean, variance = reduce.moments(targets)
    # A running second moment less the square of the running mean, in a form that does not cancel.
    delta = mean - scale.mean
    merged = (1 - weight) * (jnp.square(scale.std) + weight * jnp.square(delta)) + weight * variance
    std = jnp.clip(jnp.sqrt(merged), _SMALLEST, _LARGEST)
    return jax.lax.stop_gradient(Scale(updates, scale.mean + weight * delta, std))


def normalise(scale: Scale, x: jax.Array) -> jax.Array:
    """Values in the targets' units, as the head should say them.

    >>> normalise(Scale(1, 2.0, 4.0), jnp.array([2.0, 10.0])).tolist()
    [0.0, 2.0]
    """
    return (x - scale.mean) / scale.std


def denormalise(scale: Scale, x: jax.Array) -> jax.Array:
    """What the head says, in the targets' units.

    >>> denormalise(Scale(1, 2.0, 4.0), jnp.array([0.0, 2.0])).tolist()
    [2.0, 10.0]
    """
    return scale.std * x + scale.mean


def rescale_head(params: Head, old: Scale, new: Scale) -> Head:
    """The head that says under the new scale what it said under the old one.

    >>> params = {"kernel": jnp.ones((1, 1)), "bias": jnp.ones(1)}
    >>> found = rescale_head(params, Scale(0, 0.0, 1.0), Scale(1, 2.0, 4.0))
    >>> found["kernel"].tolist(), found["bias"].tolist()
    ([[0.25]], [-0.25])
    """
    kernel = params["kernel"] * (old.std / new.std)
    return {"kernel": kernel, "bias": normalise(new, denormalise(old, params["bias"]))}
