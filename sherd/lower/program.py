"""Build: from a graph, an environment and a policy to a program that makes iterations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax

from sherd.author.algorithm import Algorithm
from sherd.envs import make_graph, make_host
from sherd.graph.ir import Graph
from sherd.lower.begin import begin_host_program
from sherd.lower.host import Setting
from sherd.lower.memory import on_host, private_memory, require_in_program
from sherd.lower.share import Share
from sherd.lower.xla import LONGEST_CALL, XlaProgram, mesh_of_devices
from sherd.optimise import TOGETHER, optimise
from sherd.policies import DistributionPolicy, Fused
from sherd.policies.partition import partition
from sherd.policies.project import projection


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
    tile: int = 0  # what the graph was tiled with, for processes that trace it again
    replay: str = "auto"  # where replay memory is kept: in the program, on the host, or where it fits


def build(order: Order) -> Program:
    """Lower a whole run to one program: all fragments are in this process, so they become one."""
    cut = optimise(partition(order.graph, order.policy), TOGETHER)
    whole = projection(cut, cut.fragments[0].name)
    if order.graph.spec.kind == "host":
        env = make_host(order.env, order.graph.envs, order.seed)
        share = Share.of_replica(order.graph.envs)
        kept = on_host(whole.graph, order.graph.envs, order.replay)
        memory = private_memory if kept else None
        setting = Setting(order.seed, order.iterations, share, env, memory=memory)
        return begin_host_program(whole.graph, whole.held, order.algorithm, setting)
    require_in_program(order.replay)
    fused = isinstance(order.policy, Fused)
    return XlaProgram(
        whole.graph,
        order.algorithm,
        make_graph(order.env),
        order.seed,
        order.iterations,
        mesh=mesh_of_devices(_devices(order.policy, order.graph.envs), order.graph.envs)
        if isinstance(order.policy, Fused)
        else None,
        longest_call=LONGEST_CALL if fused else 1,
    )


def _devices(policy: Fused, envs: int) -> int:
    if policy.devices:
        return policy.devices
    available = jax.local_device_count()
    return next(count for count in range(available, 0, -1) if envs % count == 0)
