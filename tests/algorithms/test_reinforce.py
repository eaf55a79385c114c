"""REINFORCE: its gradient is the textbook's with and without a baseline, and it learns."""

from __future__ import annotations

import jax
import pytest
from gymnasium import spaces
from rollouts import TIME, assert_same_gradient, invented, slow_returns, textbook_loss, values
from tasks import Match
from thorough import thorough

import sherd
from sherd.algorithms.reinforce import REINFORCE
from sherd.envs import describe
from sherd.errors import UsageError

SETTINGS = {"horizon": TIME, "hidden": (8,), "discount": 0.9, "normalise_advantages": False}


@pytest.mark.parametrize("baseline", [True, False], ids=["baseline", "bare"])
@pytest.mark.parametrize("option", [{}, {"n_step": 2}, {"gae_lambda": 0.6}], ids=["all", "two", "gae"])
def test_the_gradient_is_that_of_the_textbook(option, baseline):
    reinforce = REINFORCE(baseline=baseline, **SETTINGS, **option).bind(describe("CartPole-v1"))
    params = reinforce.init(jax.random.key(0))
    rollout = invented(reinforce)
    returns = slow_returns(reinforce, params, rollout, option.get("n_step", TIME), option.get("gae_lambda"))
    weight = returns - values(reinforce, params, rollout) if baseline else returns
    textbook = textbook_loss(reinforce, rollout, weight, returns)
    assert_same_gradient(lambda params: reinforce.loss(params, rollout, ())[0], textbook, params)


def test_two_ways_of_estimating_at_once_are_refused():
    with pytest.raises(UsageError, match="n_step and gae_lambda"):
        REINFORCE(n_step=5, gae_lambda=0.9)


def test_no_steps_at_all_are_refused():
    with pytest.raises(UsageError, match="n_step is 0, but must be at least 1"):
        sherd.train(REINFORCE(n_step=0), "graph/CartPole-v1", steps=1024, envs=8, eval_episodes=0)


def test_learns_cartpole():
    reinforce = REINFORCE(horizon=64, learning_rate=5e-3)
    run = sherd.train(
        reinforce, "graph/CartPole-v1", "Fused", steps=100_000, envs=8, seed=1, eval_episodes=20
    )
    assert run.summary["return_mean"] > 150


@thorough
def test_learns_without_a_baseline():
    reinforce = REINFORCE(horizon=8, hidden=(32,), baseline=False)
    env = Match(spaces.MultiDiscrete([2, 2]), "dict")
    run = sherd.train(reinforce, env, "Fused", steps=20_000, envs=16, seed=1, eval_episodes=0)
    assert run.metrics["episode_return"][:5].mean() < 0.6
    assert run.evaluate(64).return_mean > 0.9
