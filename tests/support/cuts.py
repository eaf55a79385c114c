"""Cuts that several tests look at: algorithms by name, traced once, and policies that assign nodes freely."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from choreography import Outcome, World, run_whole
from graphs import Replaying
from odd import Feedback, Winding
from small import Explicit, QLearning

import sherd
from sherd.algorithms.ppo import PPO
from sherd.envs import describe
from sherd.graph.ir import Graph, Node
from sherd.policies import BUILT_IN, DistributionPolicy, Fragment

ENV = "graph/CartPole-v1"
ENVS = 4
TINY = {"horizon": 4, "epochs": 1, "minibatches": 2, "hidden": (8,)}
FULL = {"normalise_observations": True, "normalise_rewards": True, "target_kl": 0.003}
ALGORITHMS: dict[str, Any] = {
    "ppo": PPO(**TINY),
    "gru": PPO(**TINY, **FULL, network="gru", memory_units=4),
    "reinforce": Explicit(),
    "replay": QLearning(),
    "draws": Replaying(),
    "winding": Winding(),
    "feedback": Feedback(),
}
POLICIES: dict[str, DistributionPolicy] = {name: policy() for name, policy in BUILT_IN.items()}


@functools.cache
def traced(name: str) -> Graph:
    """The graph of an algorithm."""
    return sherd.trace(ALGORITHMS[name], describe(ENV), envs=ENVS)


@functools.cache
def world(name: str) -> World:
    """Where an algorithm is evaluated."""
    return World(ENV, ALGORITHMS[name], ENVS)


@functools.cache
def uncut(name: str) -> Outcome:
    """What two iterations of an algorithm leave behind."""
    return run_whole(world(name), traced(name))


@dataclass(frozen=True)
class Assigned(DistributionPolicy):
    """Gives each node to the fragment it is told."""

    owners: tuple[tuple[str, str], ...] = ()

    def fragments(self) -> tuple[Fragment, ...]:
        return tuple(Fragment(name, ()) for name in sorted(set(dict(self.owners).values())))

    def owner(self, node: Node) -> str:
        return dict(self.owners)[node.name]
