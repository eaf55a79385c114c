"""JAX's own random numbers, made faster on a CPU.

JAX's default generator is Threefry-2x32 (Salmon et al., 2011). On a CPU it runs as a loop of five turns that
XLA cannot fuse, so that drawing eight actions takes longer than the network that they are drawn from. This
is the same function written out, which fuses into whatever uses its numbers. They are the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

from sherd.errors import UsageError

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def _hash(key: Any, high: Any, low: Any) -> tuple[Any, Any]:
    """Twenty rounds over the 64 bits of a counter, with the key mixed in after every four."""
    parts = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    high, low = high + parts[0], low + parts[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            high = high + low
            low = high ^ ((low << rotation) | (low >> (32 - rotation)))
        high = high + parts[(group + 1) % 3]
        low = low + parts[(group + 2) % 3] + jnp.uint32(group + 1)
    return high, low


def _counted(key: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The hash of the numbers 0, 1, ... in an array of this shape."""
    size = math.prod(shape)
    if size >= 1 << 32:
        raise UsageError(
            f"{shape} is more than 2^32 random numbers from one key\n  fix: split the key and draw in parts"
        )
    low = jax.lax.iota(jnp.uint32, size).reshape(shape)
    return _hash(key, jnp.zeros_like(low), low)


def _random_bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
    high, low = _counted(key, shape)
    if width == 64:
        return (high.astype(jnp.uint64) << 32) | low.astype(jnp.uint64)
    return (high ^ low).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])


def _split(key: Any, shape: tuple[int, ...]) -> Any:
    return jnp.stack(_counted(key, shape), axis=-1)


def _fold_in(key: Any, data: Any) -> Any:
    return jnp.stack(_hash(key, jnp.uint32(0), jnp.asarray(data).astype(jnp.uint32)))


def _seed(seed: Any) -> Any:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


IMPLEMENTATION = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32, written out",
    tag="fry",
)


def as_keys(data: Any) -> Any:
    """Keys from their 64 bits [..., 2].

    >>> keys = as_keys(jnp.zeros((3, 2), jnp.uint32))
    >>> keys.shape
    (3,)
    """
    return jax.random.wrap_key_data(data, impl=IMPLEMENTATION)
