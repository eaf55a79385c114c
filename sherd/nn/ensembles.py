"""Several networks of one kind, their parameters stacked along a first axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def init_many(init: Callable[[jax.Array], Any], key: jax.Array, count: int) -> Any:
    """Parameters [count, ...] of as many networks, each from a key of its own.

    >>> init_many(lambda key: {"w": jax.random.normal(key, (3,))}, jax.random.key(0), 2)["w"].shape
    (2, 3)
    """
    return jax.vmap(init)(jax.random.split(key, count))


def apply_many(function: Callable[..., Any], params: Any, *args: Any) -> Any:
    """`function(params, *args)` of every network, stacked along a first axis.

    >>> apply_many(lambda params, x: params["w"] * x, {"w": jnp.array([1.0, 2.0])}, 3.0).tolist()
    [3.0, 6.0]
    """
    # Not `vmap`: on a CPU products of stacked matrices take a fifth longer than one after the other.
    count = jax.tree.leaves(params)[0].shape[0]
    each = [function(jax.tree.map(lambda leaf, i=i: leaf[i], params), *args) for i in range(count)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
