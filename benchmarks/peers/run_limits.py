"""How fast could it be? The halves of a workload, alone: run_limits.py WORKLOAD part=simulator|learner

part=simulator processes=2: the environments with random actions and nothing else, shared out over
processes. An environment in JAX is stepped in one compiled loop.

part=learner devices=1: acting and learning without a simulator. Sherd's algorithm runs fused, on an
environment of the same shapes that is compiled into the program and does nothing but count. Its
observations change with the count, because a compiler would move work on constants out of the loop.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import common

with common.imports("sherd", __doc__):
    import numpy as np

    from sherd.envs import describe, kind_of, make_host
    from sherd.spaces import EnvSpec, step_buffers, zeros

LENGTH = 500
WAIT = 60.0  # seconds for all processes to be there


class Idle:
    """An environment of given spaces that only counts its steps."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = EnvSpec("idle", spec.observation, spec.action, "graph")

    def reset(self, key: Any) -> tuple[Any, Any]:
        """Start counting."""
        import jax.numpy as jnp

        del key
        return jnp.int32(0), self._observe(jnp.int32(0))

    def step(self, key: Any, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Count on."""
        import jax.numpy as jnp

        del key, action
        new = jnp.where(state >= LENGTH, 0, state + 1)
        return new, self._observe(new), jnp.float32(1), new >= LENGTH, jnp.bool_(False)

    def _observe(self, count: Any) -> Any:
        import jax.numpy as jnp

        shape, kind = self.spec.observation.shape, self.spec.observation.dtype
        numbers = jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(shape) * 7 + count * 13
        if kind == np.uint8:
            return (numbers % 256).astype(jnp.uint8)
        return (numbers % 256).astype(kind) / 128 - 1


def host_rate(name: str, envs: int, first: int, meter: common.Meter, together: Any) -> None:
    """Step simulators with random actions until enough was measured."""
    env = make_host(name, envs, seed=1, first_index=first)
    out = step_buffers(env.spec, envs)
    env.reset(out.obs)
    actions = [zeros(env.spec.action, (envs,)) for _ in range(64)]
    for action in actions:
        action[...] = np.stack([env.spec.action.sample() for _ in range(envs)])
    made = 0
    together.wait(WAIT)
    while not meter.mark(made * envs):
        env.step(actions[made & 63], out)
        made += 1
    env.close()


def graph_rate(name: str, envs: int, first: int, meter: common.Meter, together: Any) -> None:
    """The same for an environment in JAX."""
    import jax
    import jax.numpy as jnp

    from sherd.envs import make_graph
    from sherd.envs.graph.batch import reset_all, step_all

    env, scan = make_graph(name), 100
    keys = jax.random.split(jax.random.key(first), envs)

    @jax.jit
    def many(state: Any, key: Any) -> tuple[Any, Any]:
        def one(carried: Any, _: Any) -> tuple[Any, Any]:
            state, key = carried
            key, drawn = jax.random.split(key)
            action = (jax.random.bits(drawn, (envs,), jnp.uint8) & 1).astype(jnp.int32)
            state, _, _, reward, *_ = step_all(env, keys, state, action)
            return (state, key), reward.sum()

        (state, _), rewards = jax.lax.scan(one, (state, key), None, scan)
        return state, rewards

    state, made = reset_all(env, keys)[0], 0
    together.wait(WAIT)
    while not meter.mark(made * envs * scan):
        state, rewards = many(state, jax.random.key(made))
        rewards.block_until_ready()
        made += 1


def one_process(
    place: int, name: str, envs: int, given: tuple[float, float], together: Any, rates: Any
) -> None:
    """The share of one process."""
    meter = common.Meter(*given)
    (graph_rate if kind_of(name) == "graph" else host_rate)(name, envs, place * envs, meter, together)
    rates.put(meter.rate)


def simulate(env: str, envs: int, count: int, seconds: float, warm_up: float) -> float:
    """Steps per second of environments that are shared out over so many processes."""
    way = multiprocessing.get_context("spawn" if kind_of(env) == "graph" else "fork")
    # All begin at once: one that was there before the others would be measured with the cores for itself.
    rates, together = way.Queue(), way.Barrier(count)
    crew = [
        way.Process(target=one_process, args=(place, env, envs // count, (seconds, warm_up), together, rates))
        for place in range(count)
    ]
    for process in crew:
        process.start()
    total = sum(rates.get() for _ in crew)
    for process in crew:
        process.join()
    return float(total)


def main() -> None:
    """Measure one half of a workload."""
    task = common.Task("limit", "sherd", __doc__)
    if task.get("part", "simulator") == "simulator":
        work, meter = task.workload, task.meter
        count = task.number("processes", 1)
        task.report(simulate(work.env, work.envs, count, meter.seconds, meter.warm_up))
        return
    from run_sherd import train

    from sherd.policies import load_policy

    idle = Idle(describe(task.workload.env))
    train(task, idle, load_policy("Fused")(devices=task.number("devices", 1)))
    task.report()


if __name__ == "__main__":
    main()
