"""Rows that run ahead: the rollouts of lockstep, some of them begun with the parameters of the one before."""

from __future__ import annotations

import random
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from small import Reinforce, tree_difference
from thorough import mostly_thorough

import sherd.lower.program
from sherd import act
from sherd.algorithms.dqn import DQN
from sherd.algorithms.ppo import PPO
from sherd.envs import describe
from sherd.graph import trace
from sherd.graph.ir import Scope
from sherd.lower import Order, build
from sherd.lower.ahead import may_run_ahead
from sherd.lower.host import Setting
from sherd.lower.patience import Patience
from sherd.lower.regions import roles_in
from sherd.lower.rows import HostRows
from sherd.policies.single import Single

ENVS, ITERATIONS, HORIZON = 20, 12, 8


class Waiting(CartPoleEnv):
    metadata = {**CartPoleEnv.metadata, "waits": True}

    def step(self, action):
        time.sleep(random.uniform(0, 0.004))
        return super().step(action)


def waiting():
    return TimeLimit(Waiting(), 15)


def plain():
    return TimeLimit(CartPoleEnv(), 15)


def made(algorithm, factory, look):
    """The summaries of some iterations, and where the environments are after them."""
    graph = trace(algorithm, describe(factory), ENVS)
    program = build(Order(algorithm, factory, graph, Single(), 5, ITERATIONS))
    look(program)
    summaries = program.run(ITERATIONS)
    ended = summaries, jax.tree.map(np.array, program.cells["env"])
    program.close()
    return ended


@pytest.mark.parametrize("network", mostly_thorough(["mlp", "gru"], ["gru"]))
def test_rollouts_are_those_of_lockstep(network, monkeypatch):
    # Nothing is learnt, so that older parameters are the same parameters.
    algorithm = PPO(
        horizon=HORIZON, epochs=1, minibatches=2, network=network, memory_units=8, learning_rate=0.0
    )
    lockstep, ended = made(algorithm, plain, lambda program: None)
    told, most, between = [], [], []
    setting = partial(Setting, went_ahead=lambda: told.append(True))
    monkeypatch.setattr(sherd.lower.program, "Setting", setting)
    monkeypatch.setattr(Patience, "took", lambda self, seconds: setattr(self, "rows", 2))

    def watch(program):
        (rows,) = [part for part in program._parts if isinstance(part, HostRows)]
        run = rows.run

        def watched(*given):
            run(*given)
            before = sum(rows._at)
            time.sleep(0.005)  # until all have come back, as if summing up and sending took so long
            rows.go_on()
            between.append(sum(rows._at) - before)
            most.append(max(rows._at) // ENVS - rows._next)

        monkeypatch.setattr(rows, "run", watched)

    summaries, states = made(algorithm, waiting, watch)
    assert len(told) >= ITERATIONS - 2  # the first waits for all
    assert 0 < max(most) <= HORIZON / 2
    assert max(between) >= ENVS / 2 * ENVS  # places of one row are so far apart: half of them went on
    assert tree_difference(states, ended) < 1e-5
    for ours, theirs in zip(summaries, lockstep, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert sum(summary["episodes"] for summary in summaries) > 0


class Twice(Reinforce):
    """Steps for one more time after its rollout."""

    def loop(self, env, learner):
        rollout = env.unroll(self.explore, learner.params, self.horizon)
        learner.step(self.loss, self.advantages(rollout))
        env.step(self.exploit(learner.params, env.obs))


class Neighbours(Reinforce):
    """Chooses something for each environment once for a whole rollout."""

    @act
    def mutate(self, params, key):
        return params["w"] + jax.vmap(lambda one: jax.random.normal(one, params["w"].shape))(key)

    @act
    def choose(self, neighbours, obs):
        return (obs[:, :, None] * neighbours).sum(1).argmax(-1).astype(jnp.int32)

    def loop(self, env, learner):
        neighbours = self.mutate(learner.params)
        for _ in env.steps(self.horizon):
            env.step(self.choose(neighbours, env.obs))
        learner.step(self.loss, self.advantages(env.rollout))


@pytest.mark.parametrize(
    ("algorithm", "may"),
    [
        (PPO(horizon=8), True),
        (PPO(horizon=8, network="gru"), True),
        (DQN(horizon=8, warm_up=100, batch=40, capacity=400), True),
        (Twice(), False),  # whoever has begun the next rollout is not where that step begins
        (Neighbours(), False),  # in the next rollout they are others
    ],
    ids=["mlp", "gru", "replay", "another step", "chosen"],
)
def test_only_loops_that_go_on_where_they_ended(algorithm, may):
    graph = trace(algorithm, describe(waiting), ENVS)
    scope = next(item for item in graph.root.body if isinstance(item, Scope) and "env" in roles_in(item))
    assert may_run_ahead(graph, scope) is may
