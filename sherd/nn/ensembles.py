"""Several networks of one kind, their parameters stacked along a first axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def init_many(init: Callable[[jax.Array], Any], key: jax.Array, count: int) -> Any:
    """Parameters [count, ...] of as many networks, each from a key of its own.

    >>> init_many(lambda key: {"w": jax.random.normal(key, (3,))}, jax.random.key(0), 2)["w"].shape
    (2, 3)
    """
    return jax.vmap(init)(jax.random.split(key, count))


def apply_many(function: Callable[..., Any], params: Any, *args: Any) -> Any:
    """`function(params, *args)` of every network, stacked along a first axis.

    >>> apply_many(lambda params, x: params["w"] * x, {"w": jax.numpy.array([1.0, 2.0])}, 3.0).tolist()
    [3.0, 6.0]
    """
    # One product of stacked matrices for all of them: its halves go to two cores at once.
    return jax.vmap(function, in_axes=(0, *(None,) * len(args)))(params, *args)
