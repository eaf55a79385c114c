"""TD3: its losses against slow formulas, its delays, its values against known ones, and that it learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_tasks import DRAWS, ENVS, HALF, LOW, SPEC, WALK, BoxWalk, small_batch
from thorough import thorough

import sherd
from sherd.algorithms.td3 import TD3
from sherd.nn.noise import batch_noise


def test_the_losses_are_what_the_paper_says():
    td3 = TD3(hidden=(8,), discount=0.9, smoothing=0.8, smoothing_clip=0.3).bind(SPEC)
    params, target = td3.init(jax.random.key(0)), td3.init(jax.random.key(1))
    step, keys = small_batch(), jax.random.split(jax.random.key(2), ENVS)
    noise = np.asarray(batch_noise(SPEC.action, keys, DRAWS))
    assert (np.abs(0.8 * noise) > 0.3).any()
    mode, value = jax.jit(td3.actor.mode), jax.jit(td3.critic.value)
    errors, worth = [], []
    for row in np.ndindex(DRAWS, ENVS):
        obs, reached = step.obs[row][None], step.next_obs[row][None]
        smooth = np.asarray(mode(target["actor"], reached)) + HALF * np.clip(0.8 * noise[row], -0.3, 0.3)
        smooth = np.clip(smooth, LOW, LOW + 2 * HALF).astype(np.float32)
        aim = step.reward[row]
        if not step.terminated[row]:
            aim += 0.9 * float(value(target["critic"], reached, smooth)[:, 0].min())
        both = np.asarray(value(params["critic"], obs, step.action[row][None])[:, 0])
        errors.append(((both - aim) ** 2).sum())
        worth.append(float(value(params["critic"], obs, mode(params["actor"], obs))[0, 0]))
    loss = jax.jit(td3.critic_loss)(params, target, step, keys)[0]
    assert loss == pytest.approx(np.mean(errors), rel=1e-4)
    assert jax.jit(td3.actor_loss)(params, step.obs) == pytest.approx(-np.mean(worth), rel=1e-4)


def test_actor_and_targets_wait_for_the_critics():
    td3 = TD3(delay=3, tau=0.1)
    assert [bool(td3.due(jnp.bool_(True), updates)) for updates in (1, 2, 3, 4, 6)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert not td3.due(jnp.bool_(False), 0)
    assert td3.follow(jnp.float32(1), jnp.float32(3), jnp.bool_(False)) == 1
    assert td3.follow(jnp.float32(1), jnp.float32(3), jnp.bool_(True)) == pytest.approx(1.2)


def test_learns_to_act_and_what_it_is_worth():
    """A walk shows its true value; treating truncation as an end, or a target that stays, is far off."""
    walk = BoxWalk()
    run = sherd.train(TD3(**WALK), walk, "Fused", steps=12_000, envs=8, seed=1, eval_episodes=0)
    td3, obs = run.algorithm.bind(walk.spec), walk.values[:5, None]
    action = td3.exploit(run.params["actor"], obs)
    np.testing.assert_allclose(action, 0.5, atol=0.15)
    values = td3.critic.value(run.params["critic"], obs, action)
    np.testing.assert_allclose(values, jnp.broadcast_to(walk.values[:5], (2, 5)), atol=1.0)
    updates = run.cells["learner"].updates
    assert int(updates["critic"]) == 2 * int(updates["actor"]) > 5_000


@thorough
@pytest.mark.slow
def test_swings_up_a_pendulum():
    td3 = TD3(hidden=(64, 64), warm_up=1_000, capacity=20_000)
    run = sherd.train(td3, "graph/Pendulum-v1", "Fused", steps=15_000, envs=8, seed=1)
    assert -250 < run.summary["return_mean"] < -100
