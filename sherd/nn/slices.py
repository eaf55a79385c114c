"""Apply layers to a large batch slice by slice, so that what lies between two layers stays in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

_KEPT = "kept between slices"


def keep(x: jax.Array) -> jax.Array:
    """Mark what the gradient of a function `in_slices` shall find, instead of computing it once more."""
    return checkpoint_name(x, _KEPT)


def in_slices(
    function: Callable[[Any, jax.Array], jax.Array], params: Any, x: jax.Array, size: int
) -> jax.Array:
    """`function(params, x)`, whose rows do not depend on each other, on so many rows at a time.

    Gradients compute the function once more, but for what it says to `keep`: writing everything out and
    reading it back takes longer than computing it.

    >>> in_slices(lambda k, x: k * x, 2.0, jnp.arange(5.0), size=2).tolist()
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    count = x.shape[0] // size
    if count < 2:
        return function(params, x)
    again = jax.checkpoint(function, policy=jax.checkpoint_policies.save_only_these_names(_KEPT))
    whole = x[: count * size].reshape((count, size, *x.shape[1:]))
    done = jax.lax.map(lambda part: again(params, part), whole)
    done = done.reshape((count * size, *done.shape[2:]))
    if count * size == x.shape[0]:
        return done
    return jnp.concatenate([done, function(params, x[count * size :])])
