"""Random keys: a function of (seed, node, iteration, step, global environment index) and nothing else.

Never of a worker's rank or of arrival order: that is what makes a run the same wherever it is cut.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import jax

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

        >>> frame = Frame(jax.random.key(0), 3, 10, jax.numpy.arange(4))
        >>> bool(frame.key("explore") == frame.within(0).key("explore"))
        False
        """
        key = jax.random.fold_in(self.seed, zlib.crc32(node.encode()))
        for part in (self.iteration, *self.turns):
            key = jax.random.fold_in(key, part)
        return key

    def env_keys(self, node: str) -> Any:
        """One key for each environment at hand."""
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(self.key(node), self.env_index)

    def perform(self, op: Op, args: tuple[Any, ...]) -> Any:
        """Call an operation's function with the key it asks for."""
        if op.key == "none":
            return op.function(*args)
        return op.function(*args, self.env_keys(op.name) if op.key == "env" else self.key(op.name))


def run_key(seed: int) -> Any:
    """The root of all keys of a run."""
    return jax.random.key(seed)
