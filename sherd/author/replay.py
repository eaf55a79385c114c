"""The `replay` handle: a memory of past steps, a ring for every environment.

A batch is drawn evenly from the environments, with a key for each, so that whoever holds some of the
environments holds exactly their part of every batch. Within an environment, draws are uniform or, with
`prioritised`, in proportion to priority (`ring.py` has the maths).

The memory itself and the index of what is in it are two cells: the index is always computed with, while the
memory has two bodies with one meaning, arrays inside a compiled program or arrays of the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sherd.author import reduce, ring
from sherd.author.ring import Ring
from sherd.author.stage import Backend, Op
from sherd.author.types import Tree
from sherd.errors import UsageError, author_source

MEMORY, INDEX = "replay", "replay_index"


class Sample(NamedTuple):
    """A batch from replay.

    `data` leaves are [draw, env, ...], or [length, draw, env, ...] if windows are longer than one step;
    `start` [draw, env] finds it again; `weight` [draw, env] corrects for drawing some more often than others.
    """

    data: Tree
    start: Any
    weight: Any


class Replay:
    """A memory of past steps. `add` a rollout, `sample` batches of it, `reprioritise` what was drawn."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ring: Ring | None = None

    def add(
        self, steps: Tree, capacity: int, length: int = 1, stride: int = 1, prioritised: bool = False
    ) -> None:
        """Append leaves [time, env, ...]; the oldest give way once `capacity` steps are held, over all.

        What can be drawn are windows of `length` steps that begin at every `stride`-th step. They may cross
        the end of an episode: `terminated`, `truncated` and `first` say where.
        """
        types = self._backend.types_of(steps)
        self._ring = self._sized(types, capacity, length, stride, prioritised)
        backend, sizes = self._backend, self._ring
        backend.declare(MEMORY, lambda example: ring.empty_memory(sizes, example), steps)
        backend.declare(INDEX, lambda example: ring.empty_index(sizes, _envs(example)), steps)
        index = backend.read(INDEX)
        knobs = (("rows", sizes.rows), *((("length", length),) if length > 1 else ()))
        store = Op("store", "replay", partial(ring.store, sizes), knobs=knobs)
        backend.write(MEMORY, backend.call(store, (backend.read(MEMORY), index.added, steps)))
        admit = Op("admit", "replay", partial(ring.admit, sizes), knobs=(("steps", sizes.added),))
        backend.write(INDEX, backend.call(admit, (index,)))

    def ready(self, steps: int) -> Any:
        """Whether at least so many steps of all environments are held, and a window among them: a `when=`."""
        sizes, envs = self._sizes(), self._backend.num_envs

        def enough(added: Any) -> Any:
            held = added[0]
            return (jnp.minimum(held, sizes.rows) * envs >= steps) & (held >= sizes.length)

        if steps > sizes.rows * envs:
            raise UsageError(
                f"replay holds {sizes.rows * envs} steps and will never be ready with {steps}\n"
                f"  at {author_source().quoted()}\n  fix: ask for fewer, or raise the capacity"
            )
        op = Op("ready", "replay", enough, knobs=(("steps", steps),))
        return self._backend.call(op, (self._backend.read(INDEX).added,))

    def sample(self, batch: int, times: int = 1, beta: Any = 0.0) -> Iterator[Sample]:
        """Loop over `times` batches of `batch` windows. `beta` is the strength of the weights, 0 to 1."""
        sizes, backend, envs = self._sizes(), self._backend, self._backend.num_envs
        if batch % envs or batch < 1:
            raise UsageError(
                f"a batch of {batch} cannot be drawn evenly from {envs} environments\n"
                f"  at {author_source().quoted()}\n"
                f"  fix: use a batch size that is a multiple of {envs}, or as many environments as divide it"
            )
        draw = Op(
            "draw",
            "replay",
            lambda index, keys: ring.draw(sizes, index, keys, batch // envs),
            "env",
            (("batch", batch),),
        )
        gather = Op("gather", "replay", partial(ring.gather, sizes))
        for _ in backend.scope("samples", times):
            drawn = backend.call(draw, (backend.read(INDEX),))
            data = backend.call(gather, (backend.read(MEMORY), drawn.start))
            weight = drawn.likelier
            if sizes.prioritised:
                weight = backend.call(Op("weigh", "learn", importance_weights), (weight, beta))
            yield Sample(data, drawn.start, weight)

    def reprioritise(self, sample: Sample, priority: Any, when: Any = True) -> None:
        """Give the windows of a sample new priorities, [draw, env]."""
        sizes = self._sizes()
        if not sizes.prioritised:
            raise UsageError(
                f"replay keeps no priorities\n  at {author_source().quoted()}\n"
                "  fix: replay.add(..., prioritised=True)"
            )
        op = Op("reprioritise", "replay", partial(ring.reprioritise, sizes))
        args = (self._backend.read(INDEX), sample.start, priority, when)
        self._backend.write(INDEX, self._backend.call(op, args))

    def _sizes(self) -> Ring:
        if self._ring is None:
            raise UsageError(f"replay is read before anything was put in\n  at {author_source().quoted()}")
        return self._ring

    def _sized(self, types: Tree, capacity: int, length: int, stride: int, prioritised: bool) -> Ring:
        """The sizes, in steps of one environment."""
        leaves = jax.tree.leaves(types)
        added, envs = leaves[0].shape[0], self._backend.num_envs
        for name, count in (("length", length), ("stride", stride)):
            if count < 1:
                raise UsageError(f"replay: {name} is {count}, but must be 1 or more")
        unit = math.lcm(added, stride)
        rows = capacity // envs // unit * unit
        if rows < added + length - 1:
            least = -(-(added + length - 1) // unit) * unit * envs
            raise UsageError(
                f"a replay of {capacity} steps is too small for {envs} environments that add {added} steps "
                f"at a time and windows of {length}\n"
                f"  at {author_source().quoted()}\n  fix: use a capacity of {least} or more"
            )
        sizes = Ring(rows, added, length, stride, prioritised)
        if self._ring not in (None, sizes):
            raise UsageError(
                f"a second replay.add differs from the first: {sizes} instead of {self._ring}\n"
                f"  at {author_source().quoted()}\n  fix: add rollouts of one length, with the same settings"
            )
        return sizes


def importance_weights(likelier: Any, beta: Any) -> Any:
    """Weights that undo a part `beta` of the preference in drawing, the largest of a batch being 1.

    >>> importance_weights(jnp.array([[0.5], [2.0]]), 1.0).tolist()
    [[1.0], [0.25]]
    """
    # In logarithms: a batch drawn before anything is stored must stay finite.
    log_weight = -beta * jnp.log(jnp.maximum(likelier, 1e-30))
    return jnp.exp(log_weight - reduce.maximum(log_weight))


def _envs(steps: Tree) -> int:
    return int(jax.tree.leaves(steps)[0].shape[1])
