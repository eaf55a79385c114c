"""Reductions over environments that see every replica.

A learner may be split over devices, each holding an equal share of the environments. A mean taken over
one share is not the mean of the batch, so whatever averages over environments goes through these
functions: plain in one process, all-reduced while the lowering traces inside `with replicas(axis)`.

Gradients: `jax.grad` of a loss made with `mean`, followed by `pmean` of the gradients, is the gradient
of the global loss whether or not `shard_map` checks varying axes (when it does, the gradients of
replicated parameters are global already and that `pmean` changes nothing).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Axis = int | Sequence[int] | None

_active: ContextVar[tuple[str, ...]] = ContextVar("sherd_replica_axes", default=())
_averaged: ContextVar[bool] = ContextVar("sherd_gradients_averaged", default=True)


@contextmanager
def replicas(*names: str, gradients: bool = True) -> Iterator[None]:
    """While tracing in this block, reductions cover the named mesh axes.

    `gradients=False` leaves gradients as each replica has them, for a server that averages them itself.

    >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("learners",))
    >>> def centred(x):
    ...     with replicas("learners"):
    ...         return x - mean(x)
    >>> spec = jax.sharding.PartitionSpec("learners")
    >>> jax.shard_map(centred, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    token, averaged = _active.set(_active.get() + names), _averaged.set(gradients)
    try:
        yield
    finally:
        _active.reset(token)
        _averaged.reset(averaged)


def mean(x: jax.Array, axis: Axis = None) -> jax.Array:
    """The mean over the given axes and all replicas.

    >>> mean(jnp.array([1.0, 3.0])).item()
    2.0
    """
    return _across(jnp.mean(x, axis=_tuple(axis)))


def moments(x: jax.Array, axis: Axis = None) -> tuple[jax.Array, jax.Array]:
    """The mean and population variance over the given axes and all replicas.

    >>> [value.item() for value in moments(jnp.array([1.0, 3.0]))]
    [2.0, 1.0]
    """
    axes = _tuple(axis)
    # Two passes: E[x^2] - E[x]^2 would cancel catastrophically for large means.
    centre = jnp.mean(x, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(x - centre), axis=axes)
    centre = centre.reshape(variance.shape)
    if not _active.get():
        return centre, variance
    # Each replica's own moments, in one message. Those of all follow from them, again without cancelling.
    centres, variances = jnp.moveaxis(_gather(jnp.stack([centre, variance])), 1, 0)
    centre = centres.mean(0)
    return centre, (variances + jnp.square(centres - centre)).mean(0)


def standardise(x: jax.Array, epsilon: float = 1e-8) -> jax.Array:
    """All elements shifted and scaled to mean zero and deviation one; the moments carry no gradient.

    >>> standardise(jnp.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    centre, variance = jax.lax.stop_gradient(moments(x))
    return (x - centre) / (jnp.sqrt(variance) + epsilon)


def average(tree: Any) -> Any:
    """Every leaf averaged over all replicas, such as gradients whose replicas hold equal shares.

    >>> average({"grad": jnp.array(2.0)})["grad"].item()
    2.0
    """
    if not _active.get():
        return tree
    # One message for all arrays of a type instead of one for each: a message costs more than its bytes.
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    means: list[Any] = [None] * len(leaves)
    for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
        mine = [index for index, leaf in enumerate(leaves) if leaf.dtype == dtype]
        whole = _across(jnp.concatenate([leaves[index].ravel() for index in mine]))
        edges = np.cumsum([leaves[index].size for index in mine])[:-1]
        for index, part in zip(mine, jnp.split(whole, edges)):
            means[index] = part.reshape(leaves[index].shape)
    return jax.tree.unflatten(treedef, means)


def gradients(tree: Any) -> Any:
    """What a `grad` node hands on: averaged over all replicas, unless a server does that.

    >>> gradients(jnp.array(2.0)).item()
    2.0
    """
    return average(tree) if _averaged.get() else tree


def total(x: Any) -> Any:
    """The sum of what all replicas hold.

    >>> total(3)
    3
    """
    names = _active.get()
    return jax.lax.psum(x, names) if names else x


def maximum(x: jax.Array) -> jax.Array:
    """The largest element of all replicas.

    >>> maximum(jnp.array([1.0, 3.0])).item()
    3.0
    """
    names = _active.get()
    return jax.lax.pmax(jnp.max(x), names) if names else jnp.max(x)


def count(n: int) -> int:
    """How many elements all replicas hold together, when each holds n.

    >>> count(8)
    8
    """
    for name in _active.get():
        n = n * jax.lax.axis_size(name)
    return n


def _gather(local: jax.Array) -> jax.Array:
    """What every replica holds, along a new first axis; a sum, so that all are known to hold the same."""
    names = _active.get()
    places = jnp.zeros((count(1), *local.shape), local.dtype)
    return jax.lax.psum(places.at[jax.lax.axis_index(names)].set(local), names)


def _across(local: jax.Array) -> jax.Array:
    names = _active.get()
    return jax.lax.pmean(local, names) if names else local


def _tuple(axis: Axis) -> int | tuple[int, ...] | None:
    return axis if axis is None or isinstance(axis, int) else tuple(axis)
