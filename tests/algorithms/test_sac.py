"""SAC: its losses against slow formulas, its values against known ones, its temperature, its learning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_tasks import DRAWS, ENVS, SPEC, WALK, BoxWalk, small_batch
from gymnasium import spaces
from thorough import thorough

import sherd
from sherd.algorithms.sac import SAC
from sherd.errors import UsageError
from sherd.nn.noise import batch_noise
from sherd.spaces import EnvSpec

ALPHA = 0.3
MOVES = {
    "batch": 32,
    "updates": 16,
    "capacity": 10_000,
    "warm_up": 500,
    "learning_rate": 2e-3,
    "hidden": (64,),
}
DISCRETE = EnvSpec("toy", SPEC.observation, spaces.Discrete(3, start=2), "graph")


def made(spec):
    sac = SAC(hidden=(8,), discount=0.9, temperature=ALPHA).bind(spec)
    return sac, sac.init(jax.random.key(0)), sac.init(jax.random.key(1))["critic"]


def test_the_losses_are_what_the_paper_says():
    sac, params, target = made(SPEC)
    step, keys = small_batch(), jax.random.split(jax.random.key(2), ENVS)
    noise = batch_noise(SPEC.action, keys, DRAWS)
    sample, value = jax.jit(sac.model.actor.sample), jax.jit(sac.model.critics.value)
    errors, costs, logs = [], [], []
    for row in np.ndindex(DRAWS, ENVS):
        obs, reached = step.obs[row][None], step.next_obs[row][None]
        action, log_prob = sample(params["actor"], reached, noise[row][None])
        aim = step.reward[row]
        if not step.terminated[row]:
            aim += 0.9 * float(value(target, reached, action).min() - ALPHA * log_prob[0])
        both = np.asarray(value(params["critic"], obs, step.action[row][None])[:, 0])
        errors.append(((both - aim) ** 2).sum())
        action, log_prob = sample(params["actor"], obs, noise[row][None])
        costs.append(float(ALPHA * log_prob[0] - value(params["critic"], obs, action).min()))
        logs.append(float(log_prob[0]))
    critic = jax.jit(sac.critic_loss)(params, target, step, keys)[0]
    actor, metrics, rows = jax.jit(sac.actor_loss)(params, step.obs, keys)
    assert critic == pytest.approx(np.mean(errors), rel=1e-4)
    assert actor == pytest.approx(np.mean(costs), rel=1e-4)
    assert metrics["entropy"] == pytest.approx(-np.mean(logs), rel=1e-4)
    # -|A| in units in which the actions' bounds are -1 and 1; these are three times as wide.
    aim = 2 * np.log(3) - 2
    temperature = jax.jit(sac.temperature_loss)(params, step.obs, rows)[0]
    assert temperature == pytest.approx(-ALPHA * (np.mean(logs) + aim), rel=1e-4)


def test_the_losses_for_discrete_actions_are_expectations():
    sac, params, target = made(DISCRETE)
    rng = np.random.default_rng(1)
    step = small_batch()._replace(action=rng.integers(2, 5, (DRAWS, ENVS)).astype(np.int32))
    see = jax.jit(sac.model.network.outputs)

    def judged(critic, obs):
        logits = np.asarray(see(params["actor"], obs), float)
        chance = np.exp(logits) / np.exp(logits).sum()
        one, two = (np.asarray(see(jax.tree.map(lambda leaf, i=i: leaf[i], critic), obs)) for i in (0, 1))
        soft = sum(p * (min(a, b) - ALPHA * np.log(p)) for p, a, b in zip(chance, one, two))
        return soft, (one, two), (chance * np.log(chance)).sum()

    errors, costs, logs = [], [], []
    for row in np.ndindex(DRAWS, ENVS):
        aim = step.reward[row]
        if not step.terminated[row]:
            aim += 0.9 * judged(target, step.next_obs[row])[0]
        value, both, log_prob = judged(params["critic"], step.obs[row])
        errors.append(sum((q[step.action[row] - 2] - aim) ** 2 for q in both))
        costs.append(-value)
        logs.append(log_prob)
    keys = jax.random.split(jax.random.key(2), ENVS)
    assert jax.jit(sac.critic_loss)(params, target, step, keys)[0] == pytest.approx(np.mean(errors), rel=1e-4)
    actor, _, rows = jax.jit(sac.actor_loss)(params, step.obs, keys)
    assert actor == pytest.approx(np.mean(costs), rel=1e-4)
    temperature = sac.temperature_loss(params, step.obs, rows)[0]
    assert temperature == pytest.approx(-ALPHA * (np.mean(logs) + 0.5 * np.log(3)), rel=1e-4)


def test_learns_to_act_with_the_entropy_asked_for_and_what_it_is_worth():
    """A walk shows its true value; treating truncation as an end, or a target that stays, is far off."""
    walk, sac = BoxWalk(), SAC(**WALK, temperature=0.1)
    run = sherd.train(sac, walk, "Fused", steps=12_000, envs=8, seed=1, eval_episodes=0)
    sac, obs = run.algorithm.bind(walk.spec), walk.values[:5, None]
    action = sac.exploit(run.params["actor"], obs)
    np.testing.assert_allclose(action, 0.5, atol=0.15)
    values = sac.model.q(run.params["critic"], obs, action)
    np.testing.assert_allclose(values, jnp.broadcast_to(walk.values[:5], (2, 5)), atol=1.0)
    assert np.mean(run.metrics["entropy"][-30:]) == pytest.approx(-1.0, abs=0.25)


def test_discrete_actions_and_a_temperature_that_stays():
    sac = SAC(**MOVES, temperature=0.05, learn_temperature=False)
    run = sherd.train(sac, "graph/LegalMoves-v0", "Fused", steps=8_000, envs=8, seed=1, eval_episodes=0)
    assert jnp.exp(run.params["temperature"]) == pytest.approx(0.05)
    # An illegal action ends an episode early, so with the mask all of them last twenty steps.
    assert np.nanmin(run.metrics["episode_length"]) == 20
    assert np.nanmean(run.metrics["episode_return"][-30:]) > 13


def test_a_memory_is_refused():
    with pytest.raises(UsageError, match="memory"):
        sherd.train(SAC(network="gru"), "graph/CartPole-v1", steps=100)


@thorough
@pytest.mark.slow
def test_swings_up_a_pendulum():
    sac = SAC(hidden=(64, 64), warm_up=1_000, capacity=20_000, learning_rate=1e-3)
    run = sherd.train(sac, "graph/Pendulum-v1", "Fused", steps=15_000, envs=8, seed=1)
    assert -250 < run.summary["return_mean"] < -100
