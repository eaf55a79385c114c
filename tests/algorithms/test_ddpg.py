"""DDPG: its losses against slow formulas, its values against known ones, and that it learns to act."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_tasks import DRAWS, ENVS, SPEC, WALK, BoxWalk, small_batch
from thorough import thorough

import sherd
from sherd.algorithms.ddpg import DDPG
from sherd.errors import UsageError


def test_the_losses_are_what_the_paper_says():
    ddpg = DDPG(hidden=(8,), discount=0.9).bind(SPEC)
    params, target = ddpg.init(jax.random.key(0)), ddpg.init(jax.random.key(1))
    step = small_batch()
    mode, value = jax.jit(ddpg.actor.mode), jax.jit(ddpg.critic.value)
    errors, worth = [], []
    for row in np.ndindex(DRAWS, ENVS):
        obs, reached = step.obs[row][None], step.next_obs[row][None]
        aim = step.reward[row]
        if not step.terminated[row]:
            aim += 0.9 * float(value(target["critic"], reached, mode(target["actor"], reached))[0, 0])
        errors.append((float(value(params["critic"], obs, step.action[row][None])[0, 0]) - aim) ** 2)
        worth.append(float(value(params["critic"], obs, mode(params["actor"], obs))[0, 0]))
    assert jax.jit(ddpg.critic_loss)(params, target, step)[0] == pytest.approx(np.mean(errors), rel=1e-4)
    assert jax.jit(ddpg.actor_loss)(params, step.obs) == pytest.approx(-np.mean(worth), rel=1e-4)


def test_learns_to_act_and_what_it_is_worth():
    """A walk shows its true value; treating truncation as an end, or a target that stays, is far off."""
    walk = BoxWalk()
    run = sherd.train(DDPG(**WALK), walk, "Fused", steps=12_000, envs=8, seed=1, eval_episodes=0)
    ddpg, obs = run.algorithm.bind(walk.spec), walk.values[:5, None]
    action = ddpg.exploit(run.params["actor"], obs)
    np.testing.assert_allclose(action, 0.5, atol=0.15)
    (value,) = ddpg.critic.value(run.params["critic"], obs, action)
    np.testing.assert_allclose(value, walk.values[:5], atol=1.0)


def test_acts_at_random_until_the_first_update_and_within_bounds():
    ddpg = DDPG(hidden=(8,), noise=0.5).bind(SPEC)
    actor, obs = ddpg.init(jax.random.key(0))["actor"], jnp.zeros((2000, 3))
    keys = jax.random.split(jax.random.key(1), 2000)
    random, noisy = ddpg.explore(actor, 0, obs, keys), ddpg.explore(actor, 1, obs, keys)
    for action in (random, noisy):
        assert action.min() >= -2
        assert action.max() <= 4
    # Half the width is 3: a uniform action deviates by 3 / sqrt 3, a noisy one by 0.5 x 3, less what is cut.
    np.testing.assert_allclose(random.std(0), 3 / np.sqrt(3), rtol=0.05)
    np.testing.assert_allclose(noisy.std(0), 1.41, rtol=0.05)
    np.testing.assert_allclose(ddpg.exploit(actor, obs).std(0), 0, atol=1e-6)


def test_discrete_actions_are_refused():
    with pytest.raises(UsageError, match="dqn"):
        sherd.train(DDPG(), "graph/CartPole-v1", steps=100)


@thorough
@pytest.mark.slow
def test_swings_up_a_pendulum():
    ddpg = DDPG(hidden=(64, 64), warm_up=1_000, capacity=20_000)
    run = sherd.train(ddpg, "graph/Pendulum-v1", "Fused", steps=15_000, envs=8, seed=1)
    assert -250 < run.summary["return_mean"] < -100
