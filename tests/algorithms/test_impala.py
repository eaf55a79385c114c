"""IMPALA: V-trace as the paper writes it, A2C where nothing lags, and learning where acting does."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import pytest
from gymnasium import spaces
from rollouts import (
    ENVS,
    TIME,
    Recall,
    assert_same_gradient,
    invented,
    log_probs,
    slow_vtrace,
    textbook_loss,
    values,
)
from tasks import Match
from thorough import mostly_thorough

import sherd
from sherd import shared
from sherd.algorithms.a2c import A2C
from sherd.algorithms.impala import IMPALA, Choice
from sherd.algorithms.reinforce import REINFORCE
from sherd.envs import describe

SETTINGS = {"horizon": TIME, "hidden": (8,), "discount": 0.9, "value_cost": 0.7, "entropy_cost": 0.03}


def lagging_rollout(impala, params):
    """A rollout whose actions were up to three times likelier or less likely for whoever acted."""
    plain = invented(impala)
    log_ratio = jax.random.uniform(jax.random.key(3), (TIME, ENVS), minval=-1.1, maxval=1.1)
    acted = log_probs(impala, params, plain) - log_ratio
    return plain._replace(extra=Choice(plain.action, acted)), log_ratio


@pytest.mark.parametrize(
    "clips",
    [
        {},
        {"clip_rho": 2.0, "clip_c": 0.8, "clip_policy_rho": 1.5},
        {"trace_lambda": 0.7},
    ],
    ids=["usual", "three clips", "lambda"],
)
def test_the_gradient_is_that_of_the_paper(clips):
    impala = IMPALA(**SETTINGS, **clips).bind(describe("CartPole-v1"))
    params = impala.init(jax.random.key(0))
    rollout, log_ratio = lagging_rollout(impala, params)
    target, advantage = slow_vtrace(impala, params, rollout, np.exp(log_ratio), **clips)
    textbook = textbook_loss(impala, rollout._replace(extra=rollout.action), advantage, target)
    assert_same_gradient(lambda params: impala.loss(params, rollout, ())[0], textbook, params)


def test_it_is_a2c_where_nothing_lags():
    impala = IMPALA(**SETTINGS).bind(describe("CartPole-v1"))
    a2c = A2C(**SETTINGS, normalise_advantages=False).bind(impala.spec)
    params = impala.init(jax.random.key(0))
    plain = invented(a2c)
    rollout = plain._replace(extra=Choice(plain.action, log_probs(impala, params, plain)))
    assert_same_gradient(
        lambda params: impala.loss(params, rollout, ())[0],
        lambda params: a2c.loss(params, plain, ())[0],
        params,
    )


def test_values_are_those_of_the_present_parameters():
    """What acting thought of a state is not even recorded."""
    impala = IMPALA(**SETTINGS).bind(describe("CartPole-v1"))
    old, new = impala.init(jax.random.key(0)), impala.init(jax.random.key(1))
    rollout, _ = lagging_rollout(impala, old)
    _, metrics = impala.loss(new, rollout, ())
    ratio = np.exp(log_probs(impala, new, rollout) - rollout.extra.log_prob)
    target, _ = slow_vtrace(impala, new, rollout, ratio)
    errors = np.square(values(impala, new, rollout) - target)
    np.testing.assert_allclose(metrics["value_loss"], 0.5 * errors.mean(), rtol=1e-4)


@dataclass(frozen=True)
class Lagging(IMPALA):
    """IMPALA whose acting gets new parameters only now and then."""

    lag: int = 10

    def state(self, params):
        return {**super().state(params), "acting": shared(params)}

    def loop(self, env, learner, state):
        memory = state.memory
        for _ in env.steps(self.horizon):
            action, choice, state.memory = self.explore(state.acting, env.obs, env.first, state.memory)
            env.step(action, choice)
        learner.step(self.loss, env.rollout, memory, scale=self.rate(learner.progress))
        state.acting = learner.every(self.lag, learner.params, state.acting)


def test_learns_cartpole_from_actors_that_lag_behind():
    run = sherd.train(
        Lagging(), "graph/CartPole-v1", "Fused", steps=80_000, envs=16, seed=1, eval_episodes=20
    )
    assert run.metrics["approx_kl"].max() > 1e-3
    assert run.summary["return_mean"] > 100


def test_learns_the_value_of_its_own_policy_while_another_acts():
    """Acting stays random, worth a half. What is learnt is worth 1, and without ratios would say a half."""
    impala = Lagging(lag=10**6, hidden=(32,), learning_rate=1e-2)
    env = Match(spaces.Discrete(2))
    run = sherd.train(impala, env, "Fused", steps=30_000, envs=16, seed=1, eval_episodes=0)
    assert run.metrics["episode_return"][-5:].mean() < 0.6
    assert run.evaluate(64).return_mean > 0.95
    said = impala.bind(env.spec).model.value(run.params, np.array([[0.0], [1.0]], np.float32), ())
    assert said.min() > 0.85


SMALL = {"horizon": 8, "network": "gru", "memory_units": 16, "hidden": (16,), "learning_rate": 1e-2}


@pytest.mark.parametrize("kind", mostly_thorough([REINFORCE, A2C, IMPALA], [IMPALA]))
def test_learns_what_only_a_memory_can_know(kind):
    run = sherd.train(kind(**SMALL), Recall(), "Fused", steps=16_000, envs=16, seed=1, eval_episodes=0)
    assert abs(run.metrics["episode_return"][:5].mean()) < 0.4
    assert run.evaluate(64).return_mean > 0.95


@pytest.mark.parametrize("kind", [REINFORCE, A2C, IMPALA])
def test_learning_remembers_what_acting_did(kind):
    """The loss unrolls the network from the memory that the rollout began with, with resets at `first`."""
    algorithm = kind(**SMALL).bind(describe("CartPole-v1"))
    params = algorithm.init(jax.random.key(0))
    params["policy"] = jax.tree.map(lambda leaf: 100 * leaf, params["policy"])
    plain = invented(algorithm)
    rollout = plain._replace(first=plain.first.at[0].set(False))
    if kind is IMPALA:
        rollout = rollout._replace(extra=Choice(rollout.action, 0.0 * rollout.reward))
    fresh = algorithm.model.initial_memory(ENVS)
    began = memory = jax.tree.map(lambda leaf: leaf + 0.9, fresh)
    entropies = []
    for t in range(TIME):
        policy, _, memory = algorithm.model.step(params, rollout.obs[t], memory, rollout.first[t])
        entropies.append(policy.entropy().mean())
    found, forgotten = (algorithm.loss(params, rollout, m)[1]["entropy"] for m in (began, fresh))
    np.testing.assert_allclose(found, np.mean(entropies), rtol=1e-5)
    assert abs(found - forgotten) > 1e-3
