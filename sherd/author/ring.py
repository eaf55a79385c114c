"""The maths of replay: which steps are held, which are drawn, and how likely each was.

Steps are numbered from 0 as they are added, the same for every environment; step i lies in row i % rows of a
ring. A draw is a *window* of `length` steps, known by the number of its first one: the number says whether it
is still there, so that a priority that comes late never lands on what has taken its place.

Everything here is small and has an environment axis of its own; what is stored (`store`, `gather`) is apart,
because it may be too large for a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sherd.author.types import Tree

_LEAST = 1e-6  # a priority of zero would never be drawn again


@dataclass(frozen=True)
class Ring:
    """The sizes of a replay memory: all are steps of one environment."""

    rows: int  # steps that are held
    added: int  # steps that are added at a time; `rows` is a multiple of it
    length: int = 1  # steps in a window
    stride: int = 1  # windows begin at every so many steps; `rows` is a multiple of it
    prioritised: bool = False

    @property
    def leaves(self) -> int:
        """Leaves of an environment's tree of priorities: a power of two."""
        return 1 << (self.rows // self.stride - 1).bit_length()


class Index(NamedTuple):
    """What is known of the steps held.

    `tree` [2 x leaves, env] is a heap of sums: node 1 is the total, node n the sum of 2n and 2n + 1, and the
    second half are the priorities of windows (0: cannot be drawn).
    """

    added: Any  # [env], how many steps were ever added
    tree: Any  # () without priorities
    highest: Any  # [env], the largest priority so far: what a new window gets


class Drawn(NamedTuple):
    """Windows [draw, env] by their first steps, and how much likelier than others each was drawn."""

    start: Any
    likelier: Any


def empty_index(ring: Ring, envs: int) -> Index:
    """An index of nothing."""
    added = jnp.zeros(envs, jnp.int32)
    if not ring.prioritised:
        return Index(added, (), ())
    return Index(added, jnp.zeros((2 * ring.leaves, envs), jnp.float32), jnp.ones(envs, jnp.float32))


def empty_memory(ring: Ring, steps: Tree) -> Tree:
    """Room for steps like these, leaves [row, env, ...]."""
    return jax.tree.map(lambda leaf: jnp.zeros((ring.rows, *leaf.shape[1:]), leaf.dtype), steps)


def store(ring: Ring, memory: Tree, added: Any, steps: Tree) -> Tree:
    """The memory with new steps [time, env, ...] in place of the oldest."""
    # All environments are at the same row, and a rollout never reaches past the last one.
    row = added[0] % ring.rows
    return jax.tree.map(
        lambda held, new: jax.lax.dynamic_update_slice_in_dim(held, new, row, axis=0), memory, steps
    )


def gather(ring: Ring, memory: Tree, start: Any) -> Tree:
    """The windows that begin at `start` [draw, env]: leaves [draw, env, ...], or [length, draw, env, ...]."""
    rows = window_rows(ring, start)

    def take(held: Any) -> Any:
        flat = rows.reshape((-1, rows.shape[-1]) + (1,) * (held.ndim - 2))
        return jnp.take_along_axis(held, flat, axis=0).reshape(*rows.shape, *held.shape[2:])

    return jax.tree.map(take, memory)


def window_rows(ring: Ring, start: Any) -> Any:
    """The rows of windows: [draw, env], or [length, draw, env]."""
    steps = jnp.arange(ring.length).reshape((-1,) + (1,) * start.ndim)
    rows = (start + steps) % ring.rows
    return rows[0] if ring.length == 1 else rows


def admit(ring: Ring, index: Index) -> Index:
    """The index after `ring.added` more steps, which complete some windows and overwrite others."""
    after = index.added + ring.added
    if not ring.prioritised:
        return index._replace(added=after)
    overwritten = index.added + jnp.arange(ring.added)[:, None]
    completed = overwritten + 1 - ring.length
    tree = index.tree
    if ring.length > 1:
        tree = _set(ring, tree, overwritten, jnp.zeros(overwritten.shape), overwritten % ring.stride == 0)
    fresh = (completed >= 0) & (completed % ring.stride == 0)
    highest = jnp.broadcast_to(index.highest, completed.shape)
    return index._replace(added=after, tree=_set(ring, tree, completed, highest, fresh))


def draw(ring: Ring, index: Index, keys: Any, draws: int) -> Drawn:
    """Draw windows from every environment, with a key for each: evenly, or in proportion to priority."""
    point = jax.vmap(lambda key: jax.random.uniform(key, (draws,)), out_axes=1)(keys)
    oldest, count = _drawable(ring, index.added)
    if not ring.prioritised:
        turn = jnp.minimum((point * count).astype(jnp.int32), count - 1)
        return Drawn(oldest + turn * ring.stride, jnp.ones(point.shape, jnp.float32))
    total = index.tree[1]
    leaf, priority = _descend(ring, index.tree, point * total)
    newest = index.added - 1
    start = newest - (newest - leaf * ring.stride) % ring.rows
    return Drawn(start, priority * count / jnp.maximum(total, _LEAST))


def reprioritise(ring: Ring, index: Index, start: Any, priority: Any, when: Any) -> Index:
    """The index with new priorities [draw, env] for windows that are still there.

    If a window is named twice, the larger priority counts.
    """
    held = (start >= index.added - ring.rows) & when & jnp.isfinite(priority)
    priority = jnp.maximum(priority, _LEAST).astype(jnp.float32)
    highest = jnp.maximum(index.highest, jnp.where(held, priority, 0.0).max(axis=0))
    return index._replace(tree=_set(ring, index.tree, start, priority, held), highest=highest)


def _drawable(ring: Ring, added: Any) -> tuple[Any, Any]:
    """The first step of the oldest whole window, and how many windows there are (at least 1)."""
    oldest = jnp.maximum(added - ring.rows, 0)
    oldest = -(-oldest // ring.stride) * ring.stride
    return oldest, jnp.maximum((added - ring.length - oldest) // ring.stride + 1, 1)


def _set(ring: Ring, tree: Any, start: Any, priority: Any, which: Any) -> Any:
    """Give windows priorities, where `which` says so, and sum up again what is above them."""
    envs = jnp.arange(tree.shape[1])
    leaf = ring.leaves + start % ring.rows // ring.stride
    aim = jnp.where(which, leaf, tree.shape[0])  # out of range: left out
    tree = tree.at[aim, envs].set(0.0, mode="drop").at[aim, envs].max(priority, mode="drop")
    node = jnp.where(which, leaf, ring.leaves)
    while_above = ring.leaves.bit_length() - 1
    for _ in range(while_above):
        node = node // 2
        tree = tree.at[node, envs].set(tree[2 * node, envs] + tree[2 * node + 1, envs])
    return tree


def _descend(ring: Ring, tree: Any, point: Any) -> tuple[Any, Any]:
    """The leaves that points in [0, total) fall on, and their priorities."""
    envs = jnp.arange(tree.shape[1])
    node = jnp.ones(point.shape, jnp.int32)
    for _ in range(ring.leaves.bit_length() - 1):
        left, right = tree[2 * node, envs], tree[2 * node + 1, envs]
        # Rounding may put a point past the last window: never step where nothing can be drawn.
        go_right = (point >= left) & (right > 0)
        point = jnp.where(go_right, point - left, point)
        node = 2 * node + go_right
    return node - ring.leaves, tree[node, envs]
