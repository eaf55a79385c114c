"""Build: from a graph, an environment and a policy to a program that makes iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax

from sherd.author.algorithm import Algorithm
from sherd.envs import make_graph, make_host
from sherd.graph.ir import Graph
from sherd.lower.host import HostProgram
from sherd.lower.xla import LONGEST_CALL, XlaProgram
from sherd.policies import DistributionPolicy, Fused


class Program(Protocol):
    """Something that makes training iterations and holds the state they work on."""

    graph: Graph
    cells: dict[str, Any]
    iteration: int

    def run(self, count: int) -> list[dict[str, float]]:
        """Make `count` iterations and return a summary of each."""

    def close(self) -> None:
        """Free what the program holds outside memory."""


@dataclass(frozen=True)
class Order:
    """Everything that a program is built from."""

    algorithm: Algorithm
    env: Any
    graph: Graph
    policy: DistributionPolicy
    seed: int
    iterations: int


def build(order: Order) -> Program:
    """Lower a graph to the program that suits its environment and policy."""
    order.policy.require(order.graph.spec, order.graph.envs)
    if order.graph.spec.kind == "host":
        host = make_host(order.env, order.graph.envs, order.seed)
        return HostProgram(order.graph, order.algorithm, host, order.seed, order.iterations)
    fused = isinstance(order.policy, Fused)
    return XlaProgram(
        order.graph,
        order.algorithm,
        make_graph(order.env),
        order.seed,
        order.iterations,
        devices=_devices(order.policy, order.graph.envs) if isinstance(order.policy, Fused) else 1,
        longest_call=LONGEST_CALL if fused else 1,
    )


def _devices(policy: Fused, envs: int) -> int:
    if policy.devices:
        return policy.devices
    available = jax.local_device_count()
    return next(count for count in range(available, 0, -1) if envs % count == 0)
