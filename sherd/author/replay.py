"""The `replay` handle and its in-graph body: a ring of steps for every environment.

A batch is drawn evenly from the environments, with a key for each, so that whoever holds some of the
environments holds exactly their part of every batch. Within an environment, draws are uniform or, once
`reprioritise` is used, proportional to priority.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sherd.author import reduce
from sherd.author.stage import Backend, Op
from sherd.author.types import Tree
from sherd.errors import UsageError, author_source


class ReplayState(NamedTuple):
    """Leaves of `data` are [step, env, ...]; `priority` is [step, env], 0 where nothing is stored."""

    data: Tree
    priority: Any
    position: Any
    filled: Any
    highest: Any


class Sample(NamedTuple):
    """A batch from replay: `data` leaves [draw, env, ...]; `index` finds it again; `weight` corrects."""

    data: Tree
    index: Any
    weight: Any


def _add(replay: ReplayState, steps: Tree) -> ReplayState:
    count = jax.tree.leaves(steps)[0].shape[0]
    capacity = replay.priority.shape[0]
    rows = (replay.position + jnp.arange(count)) % capacity
    data = jax.tree.map(lambda ring, new: ring.at[rows].set(new), replay.data, steps)
    return ReplayState(
        data,
        replay.priority.at[rows].set(replay.highest),
        (replay.position + count) % capacity,
        jnp.minimum(replay.filled + count, capacity),
        replay.highest,
    )


def _draw(replay: ReplayState, keys: Any, draws: int, beta: float) -> Sample:
    """Draw by inverting each environment's cumulative priorities."""
    cumulative = jnp.cumsum(replay.priority, axis=0)
    total = cumulative[-1]
    point = jax.vmap(lambda key: jax.random.uniform(key, (draws,)))(keys).T * total
    index = jax.vmap(lambda c, p: jnp.searchsorted(c, p, side="right"), in_axes=(1, 1), out_axes=1)(
        cumulative, point
    )
    index = jnp.minimum(index, replay.filled - 1).astype(jnp.int32)
    data = jax.tree.map(lambda ring: _rows(ring, index), replay.data)
    probability = _rows(replay.priority, index) / total
    weight = (probability * jnp.maximum(replay.filled, 1)) ** -beta
    return Sample(data, index, weight / reduce.maximum(weight))


def _rows(ring: Any, index: Any) -> Any:
    return jnp.take_along_axis(ring, index.reshape(index.shape + (1,) * (ring.ndim - 2)), axis=0)


def _reprioritise(replay: ReplayState, index: Any, priority: Any) -> ReplayState:
    envs = jnp.arange(index.shape[1])
    changed = replay.priority.at[index, envs].set(priority)
    highest = jnp.maximum(replay.highest, reduce.maximum(priority))
    return replay._replace(priority=changed, highest=highest)


class Replay:
    """A memory of past steps. `add` a rollout, `sample` batches of it, `reprioritise` what was drawn."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def add(self, steps: Tree, capacity: int) -> None:
        """Append leaves [time, env, ...]; the oldest steps give way once `capacity` steps are held."""
        envs = self._backend.num_envs
        if capacity % envs:
            raise UsageError(
                f"a replay of {capacity} steps cannot be shared by {envs} environments\n"
                f"  at {author_source().quoted()}\n  fix: use a capacity that is a multiple of {envs}"
            )
        self._backend.declare("replay", lambda example: _empty(example, capacity // envs), steps)
        op = Op("add", "replay", _add, knobs=(("capacity", capacity),))
        self._backend.write("replay", self._backend.call(op, (self._backend.read("replay"), steps)))

    def ready(self, steps: int) -> Any:
        """Whether at least so many steps are held: use it as `when=`."""
        envs = self._backend.num_envs
        op = Op("ready", "replay", lambda filled: filled * envs >= steps, knobs=(("steps", steps),))
        return self._backend.call(op, (self._backend.read("replay").filled,))

    def sample(self, batch: int, times: int = 1, beta: float = 0.0) -> Iterator[Sample]:
        """Loop over `times` batches of `batch` steps. `beta` is the strength of importance weights."""
        envs = self._backend.num_envs
        if batch % envs:
            raise UsageError(
                f"a batch of {batch} cannot be drawn evenly from {envs} environments\n"
                f"  at {author_source().quoted()}\n  fix: use a batch size that is a multiple of {envs}"
            )
        op = Op(
            "sample",
            "replay",
            lambda replay, keys: _draw(replay, keys, batch // envs, beta),
            "env",
            (("batch", batch),),
        )
        for _ in self._backend.scope("samples", times):
            yield self._backend.call(op, (self._backend.read("replay"),))

    def reprioritise(self, sample: Sample, priority: Any) -> None:
        """Give the steps of a sample new priorities, [draw, env]."""
        op = Op("reprioritise", "replay", _reprioritise)
        args = (self._backend.read("replay"), sample.index, priority)
        self._backend.write("replay", self._backend.call(op, args))


def _empty(example: Tree, rows: int) -> ReplayState:
    data = jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype), example)
    envs = jax.tree.leaves(example)[0].shape[1]
    none = jnp.int32(0)
    return ReplayState(data, jnp.zeros((rows, envs), jnp.float32), none, none, jnp.float32(1.0))
