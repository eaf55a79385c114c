"""The generator written out draws JAX's own numbers, wherever keys are used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.author.randomness import as_keys

DRAWS = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "bytes": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "uniform": lambda key: jax.random.uniform(key, (3, 4)),
    "one": jax.random.uniform,
    "normal": lambda key: jax.random.normal(key, (6,)),
    "choice": lambda key: jax.random.randint(key, (9,), 0, 5),
    "order": lambda key: jax.random.permutation(key, 50),
    "folded": lambda key: jax.random.key_data(jax.random.fold_in(key, 7)),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "cloned": lambda key: jax.random.gamma(jax.random.clone(key), 2.0),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_those_of_jax(name):
    data = jnp.array([[0, 0], [1, 2], [0xFFFFFFFF, 0x12345678]], jnp.uint32)
    ours, theirs = as_keys(data), jax.random.wrap_key_data(data, impl="threefry2x32")
    for one, two in zip(ours, theirs):
        np.testing.assert_array_equal(DRAWS[name](one), DRAWS[name](two))
    np.testing.assert_array_equal(jax.vmap(DRAWS[name])(ours), jax.vmap(DRAWS[name])(theirs))


def test_wide_bits_too():
    data = jnp.array([3, 4], jnp.uint32)
    with jax.enable_x64(True):
        one = jax.random.bits(as_keys(data), (4,), jnp.uint64)
        two = jax.random.bits(jax.random.wrap_key_data(data, impl="threefry2x32"), (4,), jnp.uint64)
    np.testing.assert_array_equal(one, two)


def test_there_is_no_loop_left_that_keeps_xla_from_fusing():
    text = (
        jax.jit(lambda data: jax.random.normal(as_keys(data), (6,))).lower(jnp.zeros(2, jnp.uint32)).as_text()
    )
    assert "while" not in text
