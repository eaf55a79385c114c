"""The public verbs: `train`, `evaluate`, `debug`.

A run is described by three frozen dataclasses that share no field: the algorithm, the distribution policy,
and `RunConfig`. Everything a run produces goes to its sinks and, if asked for, to its directory.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sherd.algorithms import load_algorithm
from sherd.algorithms import name_of as algorithm_name
from sherd.author.algorithm import Algorithm
from sherd.author.eager import Debugged, run_eagerly
from sherd.envs import describe, make_graph, make_host
from sherd.envs.registry import name_of as env_name
from sherd.errors import LARGEST_SEED, SherdWarning, UsageError, nearest, require_range
from sherd.executors import choose_executor, load_executor
from sherd.graph import Graph, check, trace
from sherd.graph.interrupts import interrupts_kept
from sherd.graph.tiles import tile_acting
from sherd.lower import Order
from sherd.lower.evaluate import Evaluation
from sherd.lower.evaluate import evaluate as play_episodes
from sherd.nn.native.library import missed
from sherd.policies import BUILT_IN, DistributionPolicy, load_policy
from sherd.runtime.events import MemorySink, RunInfo, Sink, Sinks
from sherd.runtime.jax_settings import prepare_jax
from sherd.runtime.rundir import MetricsSink, RunDirectory, environment_versions
from sherd.runtime.session import Session
from sherd.runtime.tensorboard import TensorBoardSink

EVALUATION_SEED = 1_000_003  # added to the run's seed, so that evaluation sees other episodes


@dataclass(frozen=True)
class RunConfig:
    """What to run, besides the algorithm and the distribution policy."""

    steps: int = 200_000
    """Environment steps to make, over all environments; rounded up to whole iterations."""
    seed: int = 0
    """The one number that all randomness of the run comes from."""
    envs: int = 8
    """How many environments to step in parallel."""
    executor: str = "auto"
    """What the fragments run on: inline (this process), process, or auto (what the policy needs)."""
    tile: int = 0
    """Environments to act for at a time, so that sharing them out never shows in the last bit; 0: all."""
    replay: str = "auto"
    """Where replay memory is kept: graph (in the compiled program), host (its own arrays), or auto."""
    run_dir: Path | None = None
    """Where to write config.json, metrics.jsonl, TensorBoard events and parameters."""
    eval_episodes: int = 20
    """Episodes to play at the end, without exploration; 0: none."""


@dataclass(repr=False)
class Run:
    """A finished run: what was learnt, what was measured, and how to go on with it."""

    algorithm: Algorithm
    env: Any
    config: RunConfig
    graph: Graph
    cells: dict[str, Any]
    metrics: dict[str, np.ndarray]
    summary: dict[str, Any]

    def __repr__(self) -> str:
        mean, steps = self.summary["return_mean"], self.summary["steps"]
        found = "no episode ended" if mean is None else f"return {mean:.1f}"
        return f"Run({algorithm_name(self.algorithm)} on {env_name(self.env)}, {steps:,} steps, {found})"

    @property
    def params(self) -> Any:
        """The learnt parameters, a pytree of arrays."""
        return self.cells["learner"].params

    def evaluate(self, episodes: int = 100, seed: int | None = None) -> Evaluation:
        """Play episodes with the learnt parameters, without exploration."""
        seed = self.config.seed + EVALUATION_SEED if seed is None else seed
        return play_episodes(self.algorithm, self.env, trained_cells(self.graph, self.cells), episodes, seed)


def train(
    algorithm: str | type[Algorithm] | Algorithm,
    env: Any,
    policy: str | type[DistributionPolicy] | DistributionPolicy = "Single",
    sinks: Sequence[Sink] = (),
    **config: Any,
) -> Run:
    """Train an algorithm on an environment; names or objects. Fields of `RunConfig` are keywords.

    >>> run = train("ppo", "graph/CartPole-v1", policy="Fused", steps=4096, envs=16, eval_episodes=0)
    >>> run.summary["steps"]
    4096
    """
    prepare_jax()
    algorithm, policy = _algorithm(algorithm), _policy(policy)
    run_config = make_config(config)
    spec = describe(env)
    policy.require(spec, run_config.envs)
    run_config = dataclasses.replace(run_config, executor=choose_executor(run_config.executor, policy))
    start = load_executor(run_config.executor)
    graph = tile_acting(check(trace(algorithm, spec, run_config.envs)), run_config.tile)
    for text in graph.warnings:
        warnings.warn(text, SherdWarning, stacklevel=2)
    iterations = math.ceil(run_config.steps / graph.steps_per_iteration())
    directory = RunDirectory.create(run_config.run_dir) if run_config.run_dir else None
    memory = MemorySink()
    sink = Sinks([memory, *_file_sinks(directory), *sinks])
    session = Session(graph, sink, directory)
    # Nothing is written before the program stands: what is broken off here leaves an empty directory.
    order = Order(
        algorithm, env, graph, policy, run_config.seed, iterations, run_config.tile, run_config.replay
    )
    running = _start(start, order)
    try:
        try:
            if directory:
                directory.write_config(describe_run(algorithm, env, policy, run_config))
            sink.start(_info(graph, algorithm, env, policy, run_config))
            if running.plan:
                sink.note(str(running.plan))
            if reason := missed():
                sink.note(f"convolutions take longer, without kernels in C: {reason}")
        except BaseException:
            running.close(at_once=True)  # from here on the session sees to that
            raise
        cells = session.follow(running)
        run = Run(algorithm, env, run_config, graph, cells, memory.arrays(), session.summary())
        _evaluate_at_end(run, sink)
        if directory:
            directory.write_json("summary", run.summary)
        sink.finish(run.summary)
        return run
    finally:
        sink.close()


def _start(start: Callable[[Order], Any], order: Order) -> Any:
    """Start; if Ctrl-C came and got lost on the way, end what was started."""
    running = None
    try:
        with interrupts_kept():
            running = start(order)
        return running
    except BaseException:
        if running is not None:
            running.close(at_once=True)
        raise


def _evaluate_at_end(run: Run, sink: Sink) -> None:
    if run.summary["interrupted"] or not run.config.eval_episodes:
        return
    if not run.algorithm.playable():
        sink.note(f"not evaluated: {type(run.algorithm).__name__} does not define play()")
        return
    sink.note(f"evaluating on {run.config.eval_episodes} episodes, without exploration")
    try:
        result = run.evaluate(run.config.eval_episodes)
    except KeyboardInterrupt:
        sink.note("evaluation interrupted: what was learnt is kept")
        run.summary["interrupted"] = True
        return
    run.summary |= {
        "return_mean": result.return_mean,
        "return_std": result.return_std,
        "eval_episodes": len(result.returns),
        "evaluated": True,
    }


def _algorithm(given: str | type[Algorithm] | Algorithm) -> Algorithm:
    if isinstance(given, str):
        given = load_algorithm(given)
    return given() if isinstance(given, type) else given


def _policy(given: str | type[DistributionPolicy] | DistributionPolicy) -> DistributionPolicy:
    if isinstance(given, str):
        given = load_policy(given)
    return given() if isinstance(given, type) else given


def make_config(fields: dict[str, Any]) -> RunConfig:
    """A checked `RunConfig`; unknown fields are errors."""
    known = {f.name for f in dataclasses.fields(RunConfig)}
    for name in fields:
        if name not in known:
            raise UsageError(
                f"train() has no option {name!r}: {nearest(name, known)}\n"
                "  fix: settings of an algorithm or a policy go into the object, e.g. PPO(horizon=64)"
            )
    config = RunConfig(**{**fields, "run_dir": Path(fields["run_dir"]) if fields.get("run_dir") else None})
    for name, least in (("steps", 1), ("envs", 1), ("eval_episodes", 0), ("seed", 0), ("tile", 0)):
        value = getattr(config, name)
        if not isinstance(value, int | float) or value != int(value):
            raise UsageError(f"{name} is {value!r}, but must be a whole number")
        whole: dict[str, Any] = {name: int(value)}
        config = dataclasses.replace(config, **whole)
        require_range(name, int(value), least, LARGEST_SEED if name == "seed" else None)
    return config


def trained_cells(graph: Graph, cells: dict[str, Any]) -> dict[str, Any]:
    """What evaluation needs: the parameters, and declared state that is not an environment's own."""
    shared = {name: cells[name] for name in graph.shared_cells() if name != "learner"}
    return {"params": cells["learner"].params, **shared}


def _file_sinks(directory: RunDirectory | None) -> list[Sink]:
    return [MetricsSink(directory.path), TensorBoardSink(directory.path)] if directory else []


def _info(graph: Graph, algorithm: Any, env: Any, policy: DistributionPolicy, config: RunConfig) -> RunInfo:
    return RunInfo(
        algorithm=algorithm_name(algorithm),
        env=env_name(env),
        policy=policy.name,
        executor=config.executor,
        seed=config.seed,
        envs=config.envs,
        steps=math.ceil(config.steps / graph.steps_per_iteration()) * graph.steps_per_iteration(),
        steps_per_iteration=graph.steps_per_iteration(),
        run_dir=config.run_dir,
    )


def describe_run(
    algorithm: Algorithm, env: Any, policy: DistributionPolicy, config: RunConfig
) -> dict[str, Any]:
    """Everything needed to repeat a run, as plain data."""
    return {
        "algorithm": {"name": algorithm_name(algorithm), **_plain(algorithm)},
        "env": env_name(env),
        "policy": {"name": _policy_name(policy), **_plain(policy)},
        "run": _plain(config),
        "versions": environment_versions(),
    }


def _policy_name(policy: DistributionPolicy) -> str:
    """The name under which a policy can be loaded again."""
    kind = type(policy)
    return policy.name if BUILT_IN.get(policy.name) is kind else f"{kind.__module__}:{kind.__qualname__}"


def _plain(thing: Any) -> dict[str, Any]:
    def value(item: Any) -> Any:
        if isinstance(item, tuple | list):
            return [value(part) for part in item]
        return item if isinstance(item, bool | int | float | str | None) else str(item)

    return {f.name: value(getattr(thing, f.name)) for f in dataclasses.fields(thing)}


def evaluate(
    run_dir: str | Path, episodes: int = 100, seed: int | None = None, tell: Any = None
) -> Evaluation:
    """Evaluate the run in a directory."""
    prepare_jax()
    require_range("episodes", episodes, 1)
    require_range("seed", seed or 0, 0, LARGEST_SEED)
    directory = RunDirectory.open(run_dir)
    config = directory.read_config()
    if not isinstance(config, dict) or not {"algorithm", "env", "run"} <= set(config):
        raise UsageError(
            f"{directory.path}/config.json does not describe a run\n  fix: name the directory of one"
        )
    fields = dict(config["algorithm"])
    kind = load_algorithm(fields.pop("name"))
    algorithm = kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})
    spec, env = describe(config["env"]), config["env"]
    graph = trace(algorithm, spec, config["run"]["envs"])
    like = {cell.name: cell.type for cell in graph.cells if cell.name in graph.shared_cells()}
    cells = directory.load_tree("state", like)
    seed = config["run"]["seed"] + EVALUATION_SEED if seed is None else seed
    return play_episodes(algorithm, env, trained_cells(graph, cells), episodes, seed, tell)


def debug(
    algorithm: str | type[Algorithm] | Algorithm, env: Any, iterations: int = 1, envs: int = 2, seed: int = 0
) -> Debugged:
    """Run the loop eagerly: real values, ordinary Python, breakpoints anywhere in the loop or its stages."""
    algorithm = _algorithm(algorithm)
    if describe(env).kind == "graph":
        return run_eagerly(algorithm, make_graph(env), envs, seed, iterations, iterations)
    simulators = make_host(env, envs, seed)
    try:
        return run_eagerly(algorithm, simulators, envs, seed, iterations, iterations)
    finally:
        simulators.close()
