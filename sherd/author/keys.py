"""Random keys: a function of (seed, node, iteration, step, global environment index) and nothing else.

Never of a worker's rank or of arrival order: that is what makes a run the same wherever it is cut.

The parts are mixed by an integer hash instead of by `jax.random.fold_in`. A chain of fold-ins costs more
than a small network (each is a loop of twenty rounds); the hash is a few instructions that XLA fuses. It
only has to give every moment its own key: the numbers themselves are drawn by JAX from that key.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.author.randomness import as_keys
from sherd.author.stage import Op


@dataclass(frozen=True)
class Frame:
    """Where in the run an operation is executed.

    `seed` is a key, `turns` the indices of the enclosing loops from the outermost in, `env_index` the
    global indices of the environments at hand.
    """

    seed: Any
    iteration: Any
    total: Any
    env_index: Any
    turns: tuple[Any, ...] = ()

    def within(self, turn: Any) -> Frame:
        """The frame of one turn of a loop in this frame."""
        return replace(self, turns=(*self.turns, turn))

    def key(self, node: str) -> Any:
        """The key of a node at this moment.

        >>> frame = Frame(run_key(0), 3, 10, jnp.arange(4))
        >>> bool(frame.key("explore") == frame.within(0).key("explore"))
        False
        """
        return as_keys(jnp.stack(self._lanes(node), axis=-1))

    def env_keys(self, node: str) -> Any:
        """One key for each environment at hand."""
        high, low = self._lanes(node)
        lanes = _absorb(high, low, jnp.asarray(self.env_index))
        return as_keys(jnp.stack(lanes, axis=-1))

    def _lanes(self, node: str) -> tuple[Any, Any]:
        data = jax.random.key_data(self.seed)
        high, low = data[0], data[1]
        for part in (np.uint32(zlib.crc32(node.encode())), self.iteration, *self.turns):
            high, low = _absorb(high, low, part)
        return high, low

    def perform(self, op: Op, args: tuple[Any, ...]) -> Any:
        """Call an operation's function with the key it asks for."""
        if op.key == "none":
            return op.function(*args)
        return op.function(*args, self.env_keys(op.name) if op.key == "env" else self.key(op.name))


def run_key(seed: int) -> Any:
    """The root of all keys of a run."""
    return jax.random.key(seed)


def _absorb(high: Any, low: Any, part: Any) -> tuple[Any, Any]:
    """Mix one more number into 64 bits held as two lanes; for given lanes this is a bijection of `low`."""
    part = jnp.asarray(part).astype(jnp.uint32)
    low = _scramble(low + part * jnp.uint32(0x9E3779B9) + jnp.uint32(0x7F4A7C15))
    high = _scramble(high ^ (low + jnp.uint32(0x85EBCA6B)))
    return high, low + high


def _scramble(bits: Any) -> Any:
    """A 32-bit finaliser (Wellons' lowbias32): an input bit changes each output bit half the time."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)
