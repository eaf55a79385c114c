"""An optimiser of one vector makes the steps that it makes on the tree."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sherd.author import as_vector, vector
from sherd.author.ops import initial_learner, updating

TREES = {
    "layers": {"kernel": (4, 64), "bias": (64,), "head": {"kernel": (64, 2), "bias": (2,)}},
    "one array": {"kernel": (3, 5)},
    "many numbers": {"kernel": (400, 300), "bias": (300,)},
}


def _draw(shapes, key):
    leaves, treedef = jax.tree.flatten(shapes, is_leaf=lambda leaf: isinstance(leaf, tuple))
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten([jax.random.normal(*pair) for pair in zip(keys, leaves)])


@pytest.mark.parametrize("shapes", TREES.values(), ids=TREES)
@pytest.mark.parametrize("most", [0.1, 1e6], ids=["clipped", "whole"])
def test_updates_are_those_of_the_tree(shapes, most):
    plain = optax.chain(optax.clip_by_global_norm(most), optax.adam(1e-2, eps=1e-5))
    params = _draw(shapes, jax.random.key(0))
    results = []
    for optimiser in (plain, as_vector(plain)):
        learner, update = initial_learner(params, optimiser), jax.jit(updating(optimiser, None, None))
        for number in range(3):
            grads = _draw(shapes, jax.random.key(number))
            learner, report = update(learner, grads, {"loss": jnp.float32(1)}, 0.5, True, number)
        results.append((learner.params, report))
    for one, two in zip(jax.tree.leaves(results[0]), jax.tree.leaves(results[1])):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def test_the_norm_is_taken_once_and_of_one_vector():
    optimiser = as_vector(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)))
    params = _draw(TREES["layers"], jax.random.key(0))
    learner = initial_learner(params, optimiser)
    given = (learner, params, {"loss": jnp.float32(1)}, 1.0, True, 0)
    text = jax.jit(updating(optimiser, None, None)).lower(*given).compile().as_text()
    assert text.count(" sqrt(f32[]") + text.count("f32[] sqrt(") == 1, "two norms where one would do"


def test_arrays_of_several_types_stay_apart():
    tree = {"numbers": jnp.ones(2), "flags": jnp.ones(2, jnp.int32)}
    assert vector.vector(tree) is tree
