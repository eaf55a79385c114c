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
    # One after the other. JAX shares stacked factorisations, which orthogonal weights are made by, out over
    # XLA's threads and waits for them in such a thread: two at once on two cores wait for ever (JAX 0.10.2).
    return jax.lax.map(init, jax.random.split(key, count))


def apply_many(function: Callable[..., Any], params: Any, *args: Any) -> Any:
    """`function(params, *args)` of every network, stacked along a first axis.

    >>> apply_many(lambda params, x: params["w"] * x, {"w": jax.numpy.array([1.0, 2.0])}, 3.0).tolist()
    [3.0, 6.0]
    """
    # One product of stacked matrices for all of them, not one after the other: on two cores without AVX-512
    # an update of SAC alone takes 4.8 to 5.4 ms instead of 5.9 to 7.1.
    return jax.vmap(function, in_axes=(0, *(None,) * len(args)))(params, *args)
