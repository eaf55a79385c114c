"""The conformance matrix as data: what every policy promises, for every algorithm, executor and environment.

`tests/executors/test_conformance.py` runs each cell, and `docs/conformance.md` is written from this table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from carried import Carried

from sherd.algorithms.a2c import A2C
from sherd.algorithms.ddpg import DDPG
from sherd.algorithms.dqn import DQN
from sherd.algorithms.impala import IMPALA
from sherd.algorithms.ppo import PPO
from sherd.algorithms.reinforce import REINFORCE
from sherd.algorithms.sac import SAC
from sherd.algorithms.td3 import TD3
from sherd.author import Algorithm
from sherd.envs import describe
from sherd.errors import UsageError
from sherd.executors import choose_executor
from sherd.policies import DistributionPolicy, Fused, ReplayShards, Single
from sherd.policies.central import Central
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.environments import Environments
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.multi import MultiLearner

# Twelve environments divide by 1, 2 and 3, and a simulator's two groups still have two rows each: a matrix
# product of a single row rounds differently.
ENVS, ITERATIONS, SEED = 12, 3, 3
TOLERANCE = 1e-5  # of parameters and statistics, relative and absolute, where a reduction is split

SMALL: Any = {"hidden": (16, 16)}
REPLAYED: Any = {"updates": 2, "batch": 24, "capacity": 960, "warm_up": 48, **SMALL}
ALGORITHMS: dict[str, Algorithm] = {
    "PPO": PPO(horizon=16, epochs=1, minibatches=2, normalise_observations=True, **SMALL),
    "small": Carried(),
    "REINFORCE": REINFORCE(horizon=16, **SMALL),
    "A2C": A2C(**SMALL),
    "IMPALA": IMPALA(horizon=8, network="gru", memory_units=16, **SMALL),
    "DQN": DQN(n_step=3, dueling=True, prioritised=True, noisy=True, atoms=11, **REPLAYED),
    "R2D2": DQN(
        network="gru", memory_units=16, sequence=4, burn_in=2, stride=2, prioritised=True, **REPLAYED
    ),
    "DDPG": DDPG(**REPLAYED),
    "TD3": TD3(**REPLAYED),
    "SAC": SAC(**REPLAYED),
}
CONTINUOUS = ("DDPG", "TD3", "SAC")
ENVIRONMENTS = ("host", "graph")
EXECUTORS = ("inline", "process")


def env_of(algorithm: str, kind: str) -> str:
    """The environment of that kind whose actions the algorithm takes."""
    name = "Pendulum-v1" if algorithm in CONTINUOUS else "CartPole-v1"
    return name if kind == "host" else f"graph/{name}"


@dataclass(frozen=True)
class Way:
    """One way to distribute, made for n replicas."""

    kind: type[DistributionPolicy]
    replicated: tuple[str, ...]  # the fields that say how many
    split: bool = False  # whether replicas each reduce their share
    once: bool = False  # a variant, which is run with one algorithm and one environment

    def policy(self, replicas: int) -> DistributionPolicy:
        """The policy with that many replicas."""
        return self.kind(**dict.fromkeys(self.replicated, replicas))

    @property
    def label(self) -> str:
        """As a person would write it."""
        return f"{self.kind.__name__}({', '.join(f'{name}=n' for name in self.replicated)})"

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of replicas that are looked at."""
        return (1, 2, 3) if self.replicated else (1,)


WAYS = (
    Way(Single, ()),
    Way(SingleLearnerCoarse, ("actors",)),
    Way(SingleLearnerFine, ("actors",)),
    Way(MultiLearner, ("learners",), split=True),
    Way(Fused, ("devices",), split=True),
    Way(Environments, ("actors", "policies")),
    Way(Environments, ("actors",), once=True),
    Way(Environments, ("actors", "policies", "learners"), split=True, once=True),
    Way(Central, ("workers",), split=True),
    Way(ReplayShards, ("actors", "shards")),
)

# What every run of the tests tries with processes, besides PPO on the host environment: algorithms where they
# differ most from the others. `make thorough` tries all.
ALWAYS: dict[tuple[str, str], tuple[type[DistributionPolicy], ...]] = {
    ("DQN", "host"): (ReplayShards,),
}


@dataclass(frozen=True)
class Cell:
    """One entry of the matrix."""

    algorithm: str
    env: str
    way: Way
    executor: str
    replicas: int

    @property
    def impossible(self) -> str:
        """Why it cannot exist, in the words of the error that says so; empty if it can."""
        policy = self.way.policy(self.replicas)
        try:
            policy.require(describe(env_of(self.algorithm, self.env)), ENVS)
            choose_executor(self.executor, policy)
        except UsageError as error:
            return str(error).splitlines()[0]
        return ""

    @property
    def exact(self) -> bool:
        """Whether parameters and statistics must equal those of Single, inline, bit for bit."""
        apart = self.executor == "process" or self.way.kind is Fused
        return not (self.way.split and apart and self.replicas > 1)

    @property
    def thorough(self) -> bool:
        """Whether it runs only on request."""
        if self.way.kind is Fused:
            return self.replicas != 2 or self.algorithm != "PPO"
        if self.way.once or self.replicas != (2 if self.way.replicated else 1):
            return True
        if (self.algorithm, self.env) == ("PPO", "host"):
            return self.way.kind in (ReplayShards, Single)
        return self.way.kind not in ALWAYS.get((self.algorithm, self.env), ())

    @property
    def label(self) -> str:
        """The name of the test."""
        way = self.way.label.replace("=n", f"={self.replicas}").replace(" ", "")
        return f"{self.algorithm}-{self.env}-{way}-{self.executor}"


def matrix() -> Iterator[Cell]:
    """Every algorithm, environment, policy and executor, with two replicas where there are replicas."""
    for algorithm, env in product(ALGORITHMS, ENVIRONMENTS):
        for way, executor in product(WAYS, EXECUTORS):
            if not way.once:
                yield Cell(algorithm, env, way, executor, way.counts[min(1, len(way.counts) - 1)])


def cells() -> Iterator[Cell]:
    """The cells that are run.

    Inline, all fragments are merged into one program before anything is compiled, so those cells are compared
    as programs instead. One and three replicas are run with PPO (what a count of replicas changes is how rows
    are divided, and that does not depend on the algorithm), and so are variants of a policy.
    """
    for cell in matrix():
        if not cell.impossible and (cell.executor == "process" or cell.way.kind is Fused):
            yield cell
    for way in WAYS:
        env, executor = ("graph", "inline") if way.kind is Fused else ("host", "process")
        for replicas in (2,) if way.once else way.counts:
            if way.once or (replicas != 2 and way.replicated):
                yield Cell("PPO", env, way, executor, replicas)


def page_table() -> str:
    """The matrix, as docs/conformance.md shows it."""
    notes: list[str] = []
    lines = [f"| policy | executor | environment | {' | '.join(ALGORITHMS)} |"]
    lines.append("|---" * (3 + len(ALGORITHMS)) + "|")
    rows: dict[tuple[Any, ...], list[str]] = {}
    for cell in sorted(matrix(), key=lambda cell: WAYS.index(cell.way)):
        rows.setdefault((cell.way.label, cell.executor, cell.env), []).append(_entry(cell, notes))
    for (label, executor, env), entries in rows.items():
        lines.append(f"| `{label}` | {executor} | {env} | {' | '.join(entries)} |")
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    return "\n".join(lines) + "\n"


def _entry(cell: Cell, notes: list[str]) -> str:
    if cell.impossible:
        note = cell.impossible.replace("CartPole-v1", "the environment").replace(
            "Pendulum-v1", "the environment"
        )
        notes += [] if note in notes else [note]
        return f"no ({notes.index(note) + 1})"
    if cell.executor == "inline" and cell.way.kind is not Fused:
        return "program"
    guarantee = "exact" if cell.exact else "close"
    return guarantee if cell.thorough else f"**{guarantee}**"


@dataclass(frozen=True)
class Task:
    """An asynchronous run and what it must reach."""

    name: str
    policy: DistributionPolicy
    algorithm: Algorithm
    steps: int
    least: float

    @property
    def label(self) -> str:
        """As a person would write it."""
        chosen = [f"{f.name}={getattr(self.policy, f.name)}" for f in dataclasses.fields(self.policy)]
        return f"{self.policy.name}({', '.join(one for one in chosen if not one.startswith('ring'))})"


TASKS = (
    Task(
        "PPO with V-trace",
        SingleLearnerCoarse(asynchronous=True, max_staleness=1),
        PPO(vtrace=True),
        120_000,
        400,
    ),
    Task("IMPALA", SingleLearnerCoarse(asynchronous=True), IMPALA(), 200_000, 300),
    Task("IMPALA", Environments(asynchronous=True), IMPALA(), 120_000, 150),
    Task("A2C, which is then A3C", Central(asynchronous=True), A2C(), 250_000, 200),
    Task(
        "DQN, which is then Ape-X",
        ReplayShards(asynchronous=True),
        DQN(prioritised=True, n_step=3, batch=64),
        25_000,
        100,
    ),
)


def task_table() -> str:
    """The asynchronous runs, as docs/conformance.md shows them."""
    lines = ["| algorithm | policy | trained for | evaluated return, of 500 |", "|---|---|---|---|"]
    for task in TASKS:
        lines.append(
            f"| {task.name} | `{task.label}` | {task.steps:,} steps of `CartPole-v1` | "
            f"at least {task.least:.0f} |"
        )
    return "\n".join(lines) + "\n"
