"""Replay memory in host arrays: the other body of `ring.store` and `ring.gather`, with the same meaning.

Inside a compiled program the memory is an array of the device. That is fastest while it fits; a replay of
images rarely does. Here it is NumPy arrays, changed in place: a rollout is copied in once, and a batch is
taken out by one indexing operation per leaf, into buffers that take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from sherd.author import ring
from sherd.author.replay import MEMORY
from sherd.author.ring import Ring
from sherd.errors import UsageError
from sherd.graph.ir import Graph, Node
from sherd.graph.shapes import with_envs

BODIES = ("auto", "graph", "host")
LARGE = 1 << 30  # bytes of replay that one program keeps on the host unless it is told otherwise

Allocate = Callable[[Any], Any]  # from a type to arrays of zeros


def on_host(graph: Graph, envs: int, body: str, apart: bool = False) -> bool:
    """Whether a program that holds `envs` of the environments keeps its replay memory in host arrays.

    `apart` says that it does nothing but remember: then there is nothing to compile the memory with.
    """
    if body not in BODIES:
        raise UsageError(f"replay is {body!r}, but must be one of {', '.join(BODIES)}")
    type_ = memory_type(graph, envs)
    if type_ is None or body == "graph":
        return False
    size = sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(type_))
    return body == "host" or apart or size > LARGE


def require_in_program(body: str) -> None:
    """Refuse host memory where everything is one compiled program."""
    if body == "host":
        raise UsageError(
            "replay cannot be kept on the host: environment and learning are one compiled program here\n"
            "  fix: leave out --replay, or use a host environment or the policy ReplayShards"
        )


def memory_type(graph: Graph, envs: int) -> Any:
    """The shapes of the replay memory for some environments; None if there is none."""
    cell = next((cell for cell in graph.cells if cell.name == MEMORY), None)
    return None if cell is None else with_envs(cell.type, cell.env_axes, envs)


def private_memory(type_: Any) -> Any:
    """Memory of this process."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), type_)


def moves_memory(node: Node) -> bool:
    """Whether a node writes to or reads from the memory itself."""
    function = node.op.function
    return isinstance(function, partial) and function.func in (ring.store, ring.gather)


class HostStore:
    """`ring.store` in place."""

    def __init__(self, node: Node, fill: Callable[[Any, Any], Any]) -> None:
        self.node, self._fill = node, fill
        self._ring: Ring = node.op.function.args[0]  # type: ignore[attr-defined]

    def run(self, store: dict[int, Any], clock: Any) -> None:
        del clock
        memory, added, steps = self._fill(self.node.inputs, store)
        row = int(np.asarray(added)[0]) % self._ring.rows
        for held, new in zip(jax.tree.leaves(memory), jax.tree.leaves(steps)):
            held[row : row + self._ring.added] = new
        store[self.node.output] = memory


class HostGather:
    """`ring.gather` by one `take` per leaf."""

    def __init__(self, node: Node, fill: Callable[[Any, Any], Any]) -> None:
        self.node, self._fill = node, fill
        self._ring: Ring = node.op.function.args[0]  # type: ignore[attr-defined]
        # What one batch was learnt from may still be read while the next is taken.
        self._buffers: list[list[np.ndarray[Any, Any]]] = [[], []]

    def run(self, store: dict[int, Any], clock: Any) -> None:
        del clock
        memory, start = self._fill(self.node.inputs, store)
        start = np.asarray(start)
        buffers = self._buffers.pop(0) or self.room(memory, start.shape)
        self._buffers.append(buffers)
        self.take(memory, start, buffers)
        store[self.node.output] = jax.tree.unflatten(jax.tree.structure(memory), buffers)

    def room(self, memory: Any, draws: tuple[int, ...], batches: tuple[int, ...] = ()) -> list[Any]:
        """Arrays for the windows of so many draws, leaf by leaf; `batches` are in front."""
        shape = batches + ((self._ring.length,) if self._ring.length > 1 else ()) + draws
        return [np.empty(shape + leaf.shape[2:], leaf.dtype) for leaf in jax.tree.leaves(memory)]

    def take(self, memory: Any, start: np.ndarray[Any, Any], out: list[np.ndarray[Any, Any]]) -> None:
        """Copy the windows that begin at `start` [draw, env], leaf by leaf."""
        rows = _window_rows(self._ring, start)
        envs = rows.shape[-1]
        flat = rows * envs + np.arange(envs)
        for held, into in zip(jax.tree.leaves(memory), out):
            # Clipping never happens; it spares NumPy a second buffer.
            held.reshape(-1, *held.shape[2:]).take(flat, axis=0, out=into, mode="clip")


def _window_rows(sizes: Ring, start: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    steps = np.arange(sizes.length).reshape((-1,) + (1,) * start.ndim)
    rows: np.ndarray[Any, Any] = (start + steps) % sizes.rows
    return rows[0] if sizes.length == 1 else rows
