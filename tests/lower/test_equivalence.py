"""The same seed gives the same parameters, however the loop is executed."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from small import Explicit, QLearning, Reinforce, tree_difference
from thorough import mostly_thorough, thorough

import sherd
from sherd.algorithms.ppo import PPO
from sherd.algorithms.sac import SAC
from sherd.envs import describe
from sherd.lower import interpret
from sherd.policies import Fused

PLAIN = PPO(horizon=8, minibatches=2, epochs=2, hidden=(16, 16))
FULL = PPO(
    horizon=8,
    minibatches=2,
    epochs=2,
    hidden=(16, 16),
    network="gru",
    memory_units=8,
    normalise_observations=True,
    normalise_rewards=True,
    value_clip=0.2,
    target_kl=0.003,
)
SMALL = {"plain": PLAIN, "full": FULL, "reinforce": Reinforce(), "replay": QLearning()}


def single(algorithm, env, iterations=3, envs=4, **options):
    steps = iterations * envs * algorithm.horizon
    return sherd.train(algorithm, env, steps=steps, envs=envs, eval_episodes=0, **options)


# Eager execution is slow on purpose, so it gets less to do.
EAGER = {**SMALL, "full": dataclasses.replace(FULL, horizon=4, epochs=1)}


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("reinforce", "CartPole-v1"),
        pytest.param("replay", "graph/CartPole-v1", marks=thorough),
        pytest.param("replay", "CartPole-v1", marks=thorough),
        pytest.param("full", "CartPole-v1", marks=thorough),
    ],
)
def test_eager_equals_compiled(name, env):
    algorithm = EAGER[name]
    eager = sherd.debug(algorithm, env, iterations=2, envs=4)
    compiled = single(algorithm, env, iterations=2)
    assert tree_difference(eager.params, compiled.params) < 2e-6
    start = sherd.debug(algorithm, env, iterations=0, envs=4)
    assert tree_difference(start.params, compiled.params) > 1e-5


@pytest.mark.parametrize("name", mostly_thorough(SMALL, ("replay",)))
def test_fused_equals_single_bit_for_bit(name):
    algorithm = SMALL[name]
    one = single(algorithm, "graph/CartPole-v1")
    fused = single(algorithm, "graph/CartPole-v1", policy=Fused(devices=1))
    assert tree_difference(one.params, fused.params) == 0.0
    assert tree_difference(one.cells, fused.cells) == 0.0


@pytest.mark.parametrize("name", mostly_thorough(["plain", "full", "replay"], ["plain"]))
def test_two_devices_equal_one(name):
    algorithm = SMALL[name]
    if jax.local_device_count() < 2:
        pytest.fail("the tests need two emulated devices; see conftest.py")
    one = single(algorithm, "graph/CartPole-v1", envs=8)
    two = single(algorithm, "graph/CartPole-v1", envs=8, policy=Fused(devices=2))
    assert tree_difference(one.params, two.params) < 1e-5
    assert one.summary["episodes"] == two.summary["episodes"]
    np.testing.assert_allclose(one.metrics["loss"], two.metrics["loss"], rtol=1e-4, atol=1e-5)
    shards = two.cells["env"].obs.addressable_shards
    assert [shard.data.shape[0] for shard in shards] == [4, 4]


def test_a_different_seed_gives_different_parameters():
    assert tree_difference(
        single(PLAIN, "CartPole-v1", seed=1).params, single(PLAIN, "CartPole-v1", seed=2).params
    )


def test_the_same_seed_repeats_exactly():
    one, two = (single(PLAIN, "CartPole-v1", seed=3) for _ in range(2))
    assert tree_difference(one.params, two.params) == 0.0


def test_unroll_and_the_explicit_loop_are_the_same():
    spec = describe("CartPole-v1")
    sugar, explicit = (sherd.trace(kind(), spec) for kind in (Reinforce, Explicit))

    def shape(graph):
        lines = str(graph).splitlines()[1:]
        return [line.split("#")[0].rstrip() for line in lines]

    assert shape(sugar) == shape(explicit)
    assert (
        tree_difference(single(Reinforce(), "CartPole-v1").params, single(Explicit(), "CartPole-v1").params)
        == 0
    )


def test_acting_does_not_depend_on_how_rows_are_batched():
    """An environment's first rollout is the same whether it has company or not: keys go by global index."""
    few = sherd.debug(Reinforce(), "graph/CartPole-v1", envs=2)
    many = sherd.debug(Reinforce(), "graph/CartPole-v1", envs=4)
    for one, two in zip(few.emitted[0]["episode"], many.emitted[0]["episode"]):
        np.testing.assert_array_equal(one.episode_return, two.episode_return[:, :2])


def test_breakpoints_see_real_numbers():
    from dataclasses import dataclass

    seen = []

    @dataclass(frozen=True)
    class Watched(Reinforce):
        def loop(self, env, learner):
            seen.append(float(np.asarray(env.obs).sum()))
            super().loop(env, learner)

    sherd.debug(Watched(), "CartPole-v1", iterations=2)
    assert len(seen) == 2
    assert all(np.isfinite(seen))


def test_a_condition_that_does_not_change_is_asked_before_the_loop(monkeypatch):
    """Replay is not ready in the first iteration, and is in the others."""
    algorithm = SAC(horizon=4, updates=3, batch=8, capacity=64, warm_up=20, hidden=(8,))
    scopes, found = [], interpret._fixed_condition

    def recorded(scope):
        scopes.append(found(scope))
        return scopes[-1]

    monkeypatch.setattr(interpret, "_fixed_condition", recorded)
    once = single(algorithm, "Pendulum-v1").params
    monkeypatch.setattr(interpret, "_fixed_condition", lambda scope: None)
    every_turn = single(algorithm, "Pendulum-v1").params
    assert any(scopes)
    assert tree_difference(once, every_turn) < 2e-6
    assert tree_difference(once, single(algorithm, "Pendulum-v1", iterations=1).params) > 1e-5
