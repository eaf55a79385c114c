"""The conformance matrix as data: what every policy promises, on every executor and kind of environment.

`tests/executors/test_conformance.py` runs each cell, and `docs/conformance.md` is written from this table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from carried import Carried

from sherd.algorithms.ppo import PPO
from sherd.author import Algorithm
from sherd.policies import DistributionPolicy, Fused, Single
from sherd.policies.central import Central
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.environments import Environments
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.multi import MultiLearner

# Twelve environments divide by 1, 2 and 3, and a simulator's two groups still have two rows each: a matrix
# product of a single row rounds differently.
ENVS, ITERATIONS, SEED = 12, 3, 3
TOLERANCE = 1e-5  # of parameters and statistics, relative and absolute, where a reduction is split

ALGORITHMS: dict[str, Algorithm] = {
    "PPO": PPO(horizon=16, epochs=1, minibatches=2, hidden=(16, 16), normalise_observations=True),
    "small": Carried(),
}
ENVIRONMENTS = {"host": "CartPole-v1", "graph": "graph/CartPole-v1"}
EXECUTORS = ("inline", "process")


@dataclass(frozen=True)
class Way:
    """One way to distribute, made for n replicas."""

    kind: type[DistributionPolicy]
    replicated: tuple[str, ...]  # the fields that say how many
    counts: tuple[int, ...] = (1, 2, 3)
    split: bool = False  # whether replicas each reduce their share
    once: bool = False  # a variant, which is run with one algorithm and one environment

    def policy(self, replicas: int) -> DistributionPolicy:
        """The policy with that many replicas."""
        return self.kind(**dict.fromkeys(self.replicated, replicas))

    @property
    def label(self) -> str:
        """As a person would write it."""
        return f"{self.kind.__name__}({', '.join(f'{name}=n' for name in self.replicated)})"


WAYS = (
    Way(Single, (), (1,)),
    Way(SingleLearnerCoarse, ("actors",)),
    Way(SingleLearnerFine, ("actors",)),
    Way(MultiLearner, ("learners",), split=True),
    Way(Fused, ("devices",), split=True),
    Way(Environments, ("actors", "policies")),
    Way(Environments, ("actors",), (2,), once=True),
    Way(Environments, ("actors", "policies", "learners"), (2,), split=True, once=True),
    Way(Central, ("workers",), split=True),
)

# What is exchanged at every step, in compiled simulators: the most processes for the least that is new.
PER_STEP = (SingleLearnerFine, Environments)


@dataclass(frozen=True)
class Cell:
    """One entry of the matrix."""

    algorithm: str
    env: str
    way: Way
    executor: str
    replicas: int

    @property
    def exact(self) -> bool:
        """Whether parameters and statistics must equal those of Single, inline, bit for bit."""
        apart = self.executor == "process" or self.way.kind is Fused
        return not (self.way.split and apart and self.replicas > 1)

    @property
    def thorough(self) -> bool:
        """Whether it runs only on request: other counts of replicas, where two of them are tested always."""
        always = self.way.kind in (Single, SingleLearnerCoarse, Fused)
        return self.executor == "process" and self.replicas != 2 and not always

    @property
    def label(self) -> str:
        """The name of the test."""
        way = self.way.label.replace("=n", f"={self.replicas}").replace(" ", "")
        return f"{self.algorithm}-{self.env}-{way}-{self.executor}"


def cells() -> Iterator[Cell]:
    """All cells that are tested.

    Everything runs with two replicas (one, where there are no replicas). One and three replicas are run with
    PPO on the host environment, or on the graph environment for Fused: what a count of replicas changes is
    how rows are divided, and that does not depend on the algorithm. Inline, where all fragments are merged
    into one program before anything is compiled, the counts are compared as programs instead.
    """
    for algorithm, env in product(ALGORITHMS, ENVIRONMENTS):
        for way, executor in product(WAYS, EXECUTORS):
            for replicas in _counts(way, algorithm, env, executor):
                yield Cell(algorithm, env, way, executor, replicas)


def _counts(way: Way, algorithm: str, env: str, executor: str) -> tuple[int, ...]:
    first = algorithm == "PPO" and env == "host" and executor == "process"
    if way.kind is Fused:  # one program, of one process, with the environment in it
        legal = env == "graph" and executor == "inline"
        return () if not legal else way.counts if algorithm == "PPO" else (2,)
    if first or way.counts == (1,):
        return way.counts
    if algorithm != "PPO" and env == "graph" and executor == "process" and way.kind in PER_STEP:
        return ()  # PPO on the graph environment and this algorithm on the host one prove it
    return () if way.once else (2,)


def page_table() -> str:
    """The matrix, as docs/conformance.md shows it."""
    found: dict[tuple[Any, ...], dict[tuple[str, str], list[Cell]]] = {}
    for cell in cells():
        row = found.setdefault((cell.way, cell.executor, cell.env), {})
        row.setdefault((cell.algorithm, "exact" if cell.exact else "close"), []).append(cell)
    lines = ["| policy | executor | environment | bit for bit | within the tolerance |"]
    lines.append("|---|---|---|---|---|")
    for (way, executor, env), groups in found.items():
        columns = [_column(groups, kind) for kind in ("exact", "close")]
        lines.append(f"| `{way.label}` | {executor} | {env} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def _column(groups: dict[tuple[str, str], list[Cell]], kind: str) -> str:
    parts = []
    for algorithm in ALGORITHMS:
        replicas = [str(cell.replicas) for cell in groups.get((algorithm, kind), ())]
        if replicas:
            parts.append(f"{algorithm}, n = {', '.join(replicas)}")
    return "; ".join(parts)


@dataclass(frozen=True)
class Task:
    """An asynchronous run and what it must reach."""

    policy: DistributionPolicy
    algorithm: PPO
    steps: int
    least: float
    envs: int = 8

    @property
    def label(self) -> str:
        """As a person would write it."""
        chosen = [f"{f.name}={getattr(self.policy, f.name)}" for f in dataclasses.fields(self.policy)]
        return f"{self.policy.name}({', '.join(one for one in chosen if not one.startswith('ring'))})"


TASKS = (
    Task(SingleLearnerCoarse(actors=2, asynchronous=True), PPO(), 100_000, 475),
    Task(Environments(actors=2, policies=1, asynchronous=True), PPO(), 80_000, 475),
    # A worker's part of a batch is half as large, so it is dealt into half as many minibatches.
    Task(Central(workers=2, asynchronous=True), PPO(minibatches=2), 100_000, 475),
)


def task_table() -> str:
    """The asynchronous runs, as docs/conformance.md shows them."""
    lines = ["| policy | trained for | evaluated return, of 500 |", "|---|---|---|"]
    for task in TASKS:
        lines.append(
            f"| `{task.label}` | {task.steps:,} steps of `CartPole-v1` | at least {task.least:.0f} |"
        )
    return "\n".join(lines) + "\n"
