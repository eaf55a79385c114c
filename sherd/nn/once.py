"""Keep XLA from computing something again for everyone who uses it."""

from __future__ import annotations

import jax


def computed_once(x: jax.Array) -> jax.Array:
    """The same numbers, written to memory before anything uses them.

    On a CPU XLA fuses cheap operations with whatever uses their result, and computes them once for each use.
    Random numbers are made of cheap operations, a hundred for each: noise that is broadcast to a matrix would
    be drawn for every element of it. What enters a branch of a condition is not fused with what is inside.
    It also keeps sums apart that would be rounded in another way if they were merged.

    >>> computed_once(jax.numpy.arange(3)).tolist()
    [0, 1, 2]
    """
    return jax.lax.platform_dependent(x, cpu=_through_a_condition, default=lambda x: x)


def _through_a_condition(x: jax.Array) -> jax.Array:
    if not x.size:
        return x
    first = x.ravel()[0]
    # True for every number, and for all that the compiler knows perhaps not; NaN comes out as NaN either way.
    return jax.lax.cond(first == first, lambda x: x, lambda x: -x, x)
