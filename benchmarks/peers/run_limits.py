"""How fast could it be? Parts of a workload, alone: run_limits.py WORKLOAD part=simulator|learner|products

part=simulator processes=2: the environments with random actions and nothing else, shared out over
processes. An environment in JAX is stepped in one compiled loop.

part=learner devices=1: acting and learning without a simulator. Sherd's algorithm runs fused, on an
environment of the same shapes that is compiled into the program and does nothing but count. Its
observations change with the count, because a compiler would move work on constants out of the loop.
processes=2: as many learners, on a core each and of one thread, that have nothing to tell each other, as if
one could be shared out without loss.

part=products processes=1: of SAC's updates nothing but as many products as their hidden layers need, in one
program whose threads are XLA's; with more processes, of one thread each, as if they could share updates
evenly and had nothing to tell each other. by=openblas: made by NumPy instead.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import common
import workloads

with common.imports("sherd", __doc__):
    import numpy as np

    from sherd.envs import describe, kind_of, make_host
    from sherd.spaces import EnvSpec, step_buffers, zeros

LENGTH = 500
# Of hidden layers in an update of SAC: forward 8 times (the actor twice, two critics twice, two targets), and
# backward to inputs 5 and to weights 3.
PRODUCTS = 16
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


def product_rate(batch: int, width: int, maker: str, meter: common.Meter, together: Any) -> None:
    """Make products, each of which needs the one before, as it mostly is in an update."""
    scan, draw = 20, np.random.default_rng(0)
    rows, weights = (draw.standard_normal((size, width)).astype(np.float32) for size in (batch, width))
    weights /= width**0.5  # so that numbers neither grow nor vanish
    many = (by_xla if maker == "xla" else by_openblas)(weights, scan * PRODUCTS)
    made = 0
    many(rows)
    together.wait(WAIT)
    while not meter.mark(made * scan):
        many(rows)
        made += 1


def by_xla(weights: Any, count: int) -> Any:
    """A function that multiplies so often, in one program."""
    import jax

    many = jax.jit(lambda x: jax.lax.fori_loop(0, count, lambda _, x: x @ weights, x))
    return lambda x: many(x).block_until_ready()


def by_openblas(weights: Any, count: int) -> Any:
    """The same by the library that NumPy multiplies with."""

    def many(x: Any) -> None:
        one, two = x.copy(), np.empty_like(x)
        for _ in range(count):
            np.matmul(one, weights, out=two)
            one, two = two, one

    return many


def share_of_products(
    batch: int, width: int, maker: str, given: tuple[float, float], together: Any, rates: Any
) -> None:
    """The share of one process."""
    meter = common.Meter(*given)
    product_rate(batch, width, maker, meter, together)
    rates.put(meter.rate)


def one_process(
    place: int, name: str, envs: int, given: tuple[float, float], together: Any, rates: Any
) -> None:
    """The share of one process."""
    meter = common.Meter(*given)
    (graph_rate if kind_of(name) == "graph" else host_rate)(name, envs, place * envs, meter, together)
    rates.put(meter.rate)


def in_processes(way: Any, count: int, target: Any, shares: list[tuple[Any, ...]]) -> float:
    """What the processes make together."""
    # All begin at once: one that was there before the others would be measured with the cores for itself.
    rates, together = way.Queue(), way.Barrier(count)
    crew = [way.Process(target=target, args=(*share, together, rates)) for share in shares]
    for process in crew:
        process.start()
    total = sum(rates.get() for _ in crew)
    for process in crew:
        process.join()
    return float(total)


def simulate(env: str, envs: int, count: int, given: tuple[float, float]) -> float:
    """Steps per second of environments that are shared out over so many processes."""
    way = multiprocessing.get_context("spawn" if kind_of(env) == "graph" else "fork")
    shares = [(place, env, envs // count, given) for place in range(count)]
    return in_processes(way, count, one_process, shares)


def multiply(work: workloads.Workload, count: int, maker: str, given: tuple[float, float]) -> float:
    """Steps per second for which so many processes make the products of SAC's updates."""
    if count > 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    way, share = multiprocessing.get_context("spawn"), (work.minibatch, work.hidden[0], maker, given)
    return in_processes(way, count, share_of_products, [share] * count) * work.steps / work.updates


def learn(task: common.Task) -> None:
    """Act and learn without a simulator until enough was measured."""
    from run_sherd import train

    from sherd.policies import load_policy

    train(task, Idle(describe(task.workload.env)), load_policy("Fused")(devices=task.number("devices", 1)))


def share_of_learning(core: int, together: Any, rates: Any) -> None:
    """A learner for itself."""
    os.sched_setaffinity(0, {core})
    task = common.Task("limit", "sherd", __doc__)
    together.wait(WAIT)
    learn(task)
    rates.put(task.meter.rate)


def learn_apart(count: int) -> float:
    """Steps per second of as many learners."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    cores = sorted(os.sched_getaffinity(0))
    shares = [(cores[place % len(cores)],) for place in range(count)]
    return in_processes(multiprocessing.get_context("spawn"), count, share_of_learning, shares)


def main() -> None:
    """Measure one part of a workload."""
    task = common.Task("limit", "sherd", __doc__)
    work, part, count = task.workload, task.get("part", "simulator"), task.number("processes", 1)
    given = task.meter.seconds, task.meter.warm_up
    if part == "simulator":
        task.report(simulate(work.env, work.envs, count, given))
        return
    if part == "products":
        task.report(multiply(work, count, task.get("by", "xla"), given))
        return
    if count > 1:
        task.report(learn_apart(count))
        return
    learn(task)
    task.report()


if __name__ == "__main__":
    main()
