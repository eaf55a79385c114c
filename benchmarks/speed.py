"""How fast is it here? PPO's steps per second beside the same environments with random actions.

    python benchmarks/speed.py            all workloads, one after another
    python benchmarks/speed.py cartpole-8 fused-2048

Each workload runs in a process of its own. `ppo` counts acting and learning, after the first iterations
(which compile); the best and the median of several measurements are printed, because machines are shared.
`random actions` is the environment alone, stepped through the same adapter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Workload:
    """PPO with 4 epochs by 4 minibatches and two 64-unit tanh layers."""

    env: str
    envs: int
    horizon: int
    peer: str
    peer_rate: float
    devices: int = 1


# The peers' numbers were measured on a machine of this kind (2 cores, no GPU), each alone.
WORKLOADS = {
    "cartpole-8": Workload("CartPole-v1", 8, 128, "Stable-Baselines3", 11_000),
    "cartpole-64": Workload("CartPole-v1", 64, 128, "Stable-Baselines3", 36_000),
    "halfcheetah-8": Workload("HalfCheetah-v5", 8, 256, "Stable-Baselines3", 8_400),
    "fused-2048": Workload("graph/CartPole-v1", 2048, 128, "PureJaxRL", 209_000),
    "fused-2048-2-devices": Workload("graph/CartPole-v1", 2048, 128, "PureJaxRL", 209_000, devices=2),
}
SECONDS = 4.0
REPEATS = 5


def rate(step: Any, count: int, seconds: float = SECONDS) -> float:
    """Steps per second of a function that makes `count` steps."""
    step()
    made, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        step()
        made += count
    return made / (time.perf_counter() - began)


def ppo_rates(workload: Workload) -> list[float]:
    """Steps per second of training, several times."""
    import sherd
    from sherd.algorithms.ppo import PPO
    from sherd.envs import describe
    from sherd.lower import Order, build
    from sherd.policies import Fused, Single
    from sherd.runtime import jax_settings

    if workload.devices > 1:
        jax_settings.use_devices(workload.devices)
    jax_settings.prepare_jax()
    ppo = PPO(horizon=workload.horizon, epochs=4, minibatches=4, hidden=(64, 64), learning_rate=2.5e-4)
    spec = describe(workload.env)
    graph = sherd.trace(ppo, spec, workload.envs)
    policy = Fused(devices=workload.devices) if spec.kind == "graph" else Single()
    program = build(Order(ppo, workload.env, graph, policy, seed=1, iterations=1_000_000))
    program.run(2)
    steps = workload.envs * workload.horizon
    rates = [rate(lambda: program.run(1), steps, SECONDS / 2) for _ in range(REPEATS)]
    program.close()
    return rates


def random_rate(workload: Workload) -> float:
    """Steps per second of the environment alone."""
    from sherd.envs import kind_of

    return _random_graph(workload) if kind_of(workload.env) == "graph" else _random_host(workload)


def _random_host(workload: Workload) -> float:
    import numpy as np

    from sherd.envs import make_host
    from sherd.spaces import step_buffers, zeros

    env = make_host(workload.env, workload.envs, seed=1)
    out = step_buffers(env.spec, workload.envs)
    env.reset(out.obs)
    actions = [zeros(env.spec.action, (workload.envs,)) for _ in range(64)]
    for action in actions:
        action[...] = np.stack([env.spec.action.sample() for _ in range(workload.envs)])
    made = iter(range(10**12))
    return rate(lambda: env.step(actions[next(made) & 63], out), workload.envs)


def _random_graph(workload: Workload) -> float:
    import jax
    import jax.numpy as jnp

    from sherd.envs import make_graph
    from sherd.envs.graph.batch import reset_all, step_all

    env = make_graph(workload.env)
    keys = jax.random.split(jax.random.key(0), workload.envs)

    @jax.jit
    def many(state: Any, key: Any) -> tuple[Any, Any]:
        def one(carried: Any, _: Any) -> tuple[Any, Any]:
            state, key = carried
            key, drawn = jax.random.split(key)
            action = (jax.random.bits(drawn, (workload.envs,), jnp.uint8) & 1).astype(jnp.int32)
            state, _, _, reward, *_ = step_all(env, keys, state, action)
            return (state, key), reward.sum()

        (state, key), rewards = jax.lax.scan(one, (state, key), None, 100)
        return state, rewards

    held = [reset_all(env, keys)[0]]

    def step() -> None:
        held[0], rewards = many(held[0], jax.random.key(1))
        rewards.block_until_ready()

    return rate(step, 100 * workload.envs)


def measure(name: str) -> dict[str, float]:
    """Both numbers of a workload, each in a fresh process."""
    numbers = {}
    for what in ("ppo", "random"):
        command = [sys.executable, __file__, "--one", name, what]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        numbers |= json.loads(done.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; none: all")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, what = options.one
        if what == "ppo":
            rates = ppo_rates(WORKLOADS[name])
            print(json.dumps({"best": max(rates), "median": statistics.median(rates)}))
        else:
            print(json.dumps({"random": random_rate(WORKLOADS[name])}))
        return
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}\n")
    print("| workload | PPO steps/s, median (best) | random actions, steps/s | a peer here | median / peer |")
    print("|---|---|---|---|---|")
    for name in options.workloads or WORKLOADS:
        workload, found = WORKLOADS[name], measure(name)
        print(
            f"| {name}: {workload.env}, {workload.envs} x {workload.horizon} "
            f"| {found['median']:,.0f} ({found['best']:,.0f}) | {found['random']:,.0f} "
            f"| {workload.peer} {workload.peer_rate:,.0f} | {found['median'] / workload.peer_rate:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
