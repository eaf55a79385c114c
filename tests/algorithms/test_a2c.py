"""A2C: its gradient is the textbook's, and it learns."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from gymnasium import spaces
from rollouts import TIME, assert_same_gradient, invented, slow_returns, textbook_loss, values
from tasks import Match
from thorough import thorough

import sherd
from sherd.algorithms.a2c import A2C
from sherd.envs import describe
from sherd.errors import UsageError

SETTINGS = {"horizon": TIME, "hidden": (8,), "discount": 0.9, "value_cost": 0.7, "entropy_cost": 0.03}


@pytest.mark.parametrize("option", [{}, {"n_step": 3}, {"gae_lambda": 0.8}], ids=["all", "three", "gae"])
def test_the_gradient_is_that_of_the_textbook(option):
    a2c = A2C(**SETTINGS, normalise_advantages=False, **option).bind(describe("CartPole-v1"))
    params = a2c.init(jax.random.key(0))
    rollout = invented(a2c)
    returns = slow_returns(a2c, params, rollout, option.get("n_step", TIME), option.get("gae_lambda"))
    textbook = textbook_loss(a2c, rollout, returns - values(a2c, params, rollout), returns)
    assert_same_gradient(lambda params: a2c.loss(params, rollout, ())[0], textbook, params)


def test_advantages_are_normalised_before_they_weigh():
    a2c = A2C(**SETTINGS).bind(describe("CartPole-v1"))
    params = a2c.init(jax.random.key(0))
    rollout = invented(a2c)
    returns = slow_returns(a2c, params, rollout)
    advantage = returns - values(a2c, params, rollout)
    textbook = textbook_loss(a2c, rollout, (advantage - advantage.mean()) / advantage.std(), returns)
    assert_same_gradient(lambda params: a2c.loss(params, rollout, ())[0], textbook, params)


def test_two_ways_of_estimating_at_once_are_refused():
    with pytest.raises(UsageError, match="n_step and gae_lambda"):
        A2C(n_step=5, gae_lambda=0.9)


def test_learns_cartpole():
    run = sherd.train(A2C(), "graph/CartPole-v1", "Fused", steps=200_000, envs=8, seed=1, eval_episodes=20)
    assert run.summary["return_mean"] > 200


@thorough
def test_learns_continuous_actions():
    a2c = A2C(hidden=(32,), learning_rate=5e-3, entropy_cost=0.0, discount=0.0)
    env = Match(spaces.Box(-1, 1, (2,), np.float32))
    run = sherd.train(a2c, env, "Fused", steps=20_000, envs=16, seed=1, eval_episodes=0)
    assert run.metrics["episode_return"][:5].mean() < 0.6
    assert run.evaluate(64).return_mean > 0.8
