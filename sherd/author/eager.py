"""Eager execution: the loop runs as ordinary Python on real values, so that a debugger can step through it.

Slow on purpose: nothing is compiled, and every operation is executed where its line stands. Given the
same seed it computes what the compiled run computes (up to rounding).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from sherd.author.algorithm import Algorithm, call_with_handles
from sherd.author.environments import graph_begin, graph_stepping, host_begin, host_stepping
from sherd.author.handles import make_handles
from sherd.author.keys import Frame, run_key
from sherd.author.ops import initial_learner
from sherd.author.stage import Op, active
from sherd.author.types import EnvironmentStep, EnvState, Tree
from sherd.errors import UsageError, author_source

Emitted = dict[str, list[Any]]
PROPAGATED = ("metrics", "episode")


class EagerBackend:
    """Executes operations as they are called and keeps the cells."""

    def __init__(self, cells: dict[str, Any], frame: Frame) -> None:
        self.cells = cells
        self.frame = frame
        self._counts: Counter[str] = Counter()
        self._written: set[str] = set()
        self._emitted: list[Emitted] = [{}]
        self._collected: Emitted = {}

    iteration = property(lambda self: self.frame.iteration)
    total = property(lambda self: self.frame.total)
    num_envs = property(lambda self: len(self.frame.env_index))

    def call(self, op: Op, args: tuple[Any, ...]) -> Any:
        named = replace(op, name=occurrence(op.name, self._counts))
        with active(None):
            return self.frame.perform(named, args)

    def read(self, cell: str) -> Any:
        if cell not in self.cells:
            raise UsageError(f"{cell} is read before anything was put in\n  at {author_source().quoted()}")
        return self.cells[cell]

    def write(self, cell: str, value: Any, once: bool = False) -> None:
        if once and cell in self._written:
            raise UsageError(
                f"state cell {cell!r} is written twice in one iteration\n  at {author_source().quoted()}"
            )
        self._written.add(cell)
        self.cells[cell] = value

    def declare(self, cell: str, build: Callable[[Any], Any], like: Any) -> None:
        if cell not in self.cells:
            self.cells[cell] = build(like)

    def types_of(self, tree: Any) -> Any:
        return jax.eval_shape(lambda: tree)

    def scope(self, name: str, trips: int) -> Iterator[Any]:
        outer, counts, written = self.frame, self._counts.copy(), self._written.copy()
        self._emitted.append({})
        for turn in range(trips):
            self.frame = outer.within(turn)
            # Every turn is the same text: it has the same node names and may write the same cells.
            self._counts, self._written = counts.copy(), written.copy()
            yield turn
        self.frame = outer
        self._collected = {
            channel: [
                jax.tree.map(lambda *turns: jnp.stack(turns), *site) for site in _by_site(values, trips)
            ]
            for channel, values in self._emitted.pop().items()
        }
        for channel in PROPAGATED:
            for value in self._collected.get(channel, []):
                self.emit(channel, value)

    def emit(self, channel: str, value: Any) -> None:
        self._emitted[-1].setdefault(channel, []).append(value)

    def collected(self, channel: str) -> Any:
        return self._collected.get(channel, [])

    def finish(self) -> Emitted:
        """End an iteration: what it emitted, and readiness for the next."""
        emitted, self._emitted = self._emitted[0], [{}]
        self._counts.clear()
        self._written.clear()
        self.frame = replace(self.frame, iteration=self.frame.iteration + 1)
        return emitted


def _by_site(values: list[Any], trips: int) -> list[list[Any]]:
    sites = len(values) // trips
    return [values[site::sites] for site in range(sites)]


def occurrence(name: str, counts: Counter[str]) -> str:
    """A name for the next use of an operation in an iteration: `explore`, then `explore.1`, ..."""
    seen = counts[name]
    counts[name] += 1
    return f"{name}.{seen}" if seen else name


def begin_cells(algorithm: Algorithm, env: EnvState, seed: Any) -> dict[str, Any]:
    """The initial value of every cell that is known before the loop runs."""
    params = algorithm.init(jax.random.fold_in(seed, 0))
    learner = initial_learner(params, algorithm.optimiser())
    num_envs = env.first.shape[0]
    declared = {name: cell.build(num_envs) for name, cell in algorithm.state(params).items()}
    return {"env": env, "learner": learner, **declared}


def separate(cells: dict[str, Any]) -> dict[str, Any]:
    """The same cells, no two of them in the same memory, as a program that donates memory needs.

    A target network, for one, begins as the very array that the learner holds.
    """
    return jax.tree.map(jnp.copy, cells)


@dataclass(repr=False)
class Debugged:
    """What an eager run leaves behind: the parameters, every cell, and what was reported."""

    params: Tree
    cells: dict[str, Any]
    emitted: list[Emitted]

    def __repr__(self) -> str:
        return f"Debugged({len(self.emitted)} iterations; params, cells: {', '.join(self.cells)}; emitted)"


def run_eagerly(
    algorithm: Algorithm, env: Any, envs: int, seed: int, iterations: int, total: int
) -> Debugged:
    """Run the loop eagerly on a graph environment or on host environments already made."""
    algorithm = algorithm.bind(env.spec)
    key, index = run_key(seed), jnp.arange(envs)
    frame = Frame(key, 0, total, index)
    stepping: EnvironmentStep
    if env.spec.kind == "graph":
        stepping = graph_stepping(env)
        state = graph_begin(env, frame.env_keys("reset"))
    else:
        stepping, state = host_stepping(env), host_begin(env)
    backend = EagerBackend(begin_cells(algorithm, state, key), frame)
    names = tuple(name for name in backend.cells if name not in ("env", "learner"))
    handles = make_handles(backend, algorithm, names, stepping)
    emitted = []
    with active(backend), jax.disable_jit():
        for _ in range(iterations):
            call_with_handles(algorithm.loop, handles)
            emitted.append(backend.finish())
    return Debugged(backend.cells["learner"].params, backend.cells, emitted)
