"""Evaluate: play whole episodes with an algorithm's `play`, exploration off, parameters fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.author.algorithm import Algorithm
from sherd.author.environments import graph_stepping
from sherd.author.keys import Frame, run_key
from sherd.author.types import Episode
from sherd.envs import describe, make_graph, make_host
from sherd.errors import RunError, UsageError
from sherd.graph import trace_play
from sherd.lower.begin import begin_host_program
from sherd.lower.host import Setting
from sherd.lower.share import Share
from sherd.lower.xla import initial_cells, run_once
from sherd.policies.project import whole_cells

MOST_ENVS = 16
STEPS_PER_CALL = 64
LONGEST_EPISODE = 200_000  # beyond this an episode counts as endless


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes that were played."""

    returns: np.ndarray
    lengths: np.ndarray

    @property
    def return_mean(self) -> float:
        return float(self.returns.mean())

    @property
    def return_std(self) -> float:
        return float(self.returns.std())


def evaluate(
    algorithm: Algorithm,
    env: Any,
    trained: dict[str, Any],
    episodes: int,
    seed: int,
    tell: Callable[[int], None] | None = None,
) -> Evaluation:
    """Play `episodes` episodes; every environment plays the same number, so short ones are not favoured.

    `trained` holds the parameters and the shared cells of a run.
    """
    if episodes < 1:
        raise UsageError(f"cannot evaluate on {episodes} episodes\n  fix: ask for one or more")
    envs = min(episodes, MOST_ENVS)
    quota = -(-episodes // envs)
    returns: list[list[float]] = [[] for _ in range(envs)]
    lengths: list[list[int]] = [[] for _ in range(envs)]
    for calls, chunk in enumerate(_play(algorithm, env, trained, envs, seed), start=1):
        for step, row in zip(*np.nonzero(chunk.ended)):
            if len(returns[row]) < quota:
                returns[row].append(float(chunk.episode_return[step, row]))
                lengths[row].append(int(chunk.episode_length[step, row]))
        done = sum(map(len, returns))
        if tell:
            tell(min(done, episodes))
        if done == envs * quota:
            break
        if calls * STEPS_PER_CALL > LONGEST_EPISODE * quota:
            raise RunError(f"evaluation: after {calls * STEPS_PER_CALL:,} steps an episode had not ended")
    flat = [value for row in zip(*returns) for value in row][:episodes]
    flat_lengths = [value for row in zip(*lengths) for value in row][:episodes]
    return Evaluation(np.array(flat), np.array(flat_lengths))


def _play(algorithm: Algorithm, env: Any, trained: dict[str, Any], envs: int, seed: int) -> Iterator[Episode]:
    spec = describe(env)
    graph = trace_play(algorithm, spec, envs, STEPS_PER_CALL)
    if spec.kind == "host":
        setting = Setting(seed, 1, Share.of_replica(envs), make_host(env, envs, seed))
        program = begin_host_program(graph, whole_cells(graph), algorithm, setting)
        program.cells = _with_trained(program.cells, trained)
        try:
            while True:
                yield program.advance()[1][0]
        finally:
            program.close()
    graph_env = make_graph(env)
    stepping = graph_stepping(graph_env)
    frame = Frame(run_key(seed), 0, 1, jnp.arange(envs))
    bound = algorithm.bind(spec)
    cells = _with_trained(jax.jit(lambda: initial_cells(graph, bound, graph_env, frame))(), trained)

    @jax.jit
    def call(cells: Any, number: Any) -> tuple[Any, Episode]:
        after, emitted = run_once(graph, stepping, cells, Frame(frame.seed, number, 1, frame.env_index))
        return after, emitted["episode"][0]

    number = 0
    while True:
        cells, episode = call(cells, number)
        number += 1
        yield jax.device_get(episode)


def _with_trained(cells: dict[str, Any], trained: dict[str, Any]) -> dict[str, Any]:
    learner = cells["learner"]._replace(params=trained["params"])
    kept = {name: value for name, value in trained.items() if name != "params" and name in cells}
    return {**cells, **kept, "learner": learner}
