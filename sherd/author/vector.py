"""Optimise the parameters of a small network as one vector.

An optimiser makes a handful of operations for every array of the parameters. On networks of a few thousand
numbers each of them costs more than its arithmetic: of about 125 kernels of one of DQN's updates, some 50
were Adam's, the norm's and copies of their arrays (8 updates of two 64-unit layers: 1,211 us, as one vector
1,153).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

_MANY = 100_000  # numbers: from here on copying them to a vector costs more than it saves


class VectorOptimiser(optax.GradientTransformation):
    """What `as_vector` makes. Whoever needs the norm of gradients too takes it of the same vector."""


def as_vector(optimiser: optax.GradientTransformation) -> VectorOptimiser:
    """The optimiser, working on all parameters as one vector unless they are many.

    It must treat all numbers alike, as Adam and clipping by the global norm do.

    >>> params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    >>> optimiser = as_vector(optax.adam(1e-3))
    >>> state = optimiser.init(params)
    >>> state[0].mu.shape
    (6,)
    >>> {name: leaf.shape for name, leaf in optimiser.update(params, state, params)[0].items()}
    {'bias': (2,), 'kernel': (2, 2)}
    """

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, state = optimiser.update(vector(grads), state, None if params is None else vector(params))
        return _like(grads, steps), state

    return VectorOptimiser(lambda params: optimiser.init(vector(params)), update)


def vector(tree: Any) -> Any:
    """All arrays of a tree as one; the tree itself if that would be large or of several types.

    >>> vector({"a": jnp.zeros((2, 2)), "b": jnp.ones(1)}).tolist()
    [0.0, 0.0, 0.0, 0.0, 1.0]
    """
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) if _fits(tree) else tree


def _like(tree: Any, found: Any) -> Any:
    """What `vector` makes of such a tree, in the shape of the tree again."""
    if not _fits(tree):
        return found
    leaves, treedef = jax.tree.flatten(tree)
    parts = jnp.split(found, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return jax.tree.unflatten(treedef, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves)])


def _fits(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    alike = len({leaf.dtype for leaf in leaves}) == 1
    return alike and sum(leaf.size for leaf in leaves) <= _MANY
