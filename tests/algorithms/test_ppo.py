"""PPO: exact on an environment with known values, and able to learn with every kind of space."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces
from rollouts import ENVS, TIME, invented, log_probs, slow_returns, slow_vtrace, values
from tasks import DISCOUNT, GraphWalk, HostWalk, Identity, Match
from thorough import mostly_thorough, thorough

import sherd
from sherd import learn
from sherd.algorithms.ppo import PPO, Batch, Choice
from sherd.envs import describe
from sherd.errors import UsageError
from sherd.nn import popart


@dataclass(frozen=True)
class Oracle(PPO):
    """PPO whose value function is exact: the observation is the true value. It reports its advantages."""

    def init(self, key):
        params = super().init(key)
        value = {"kernel": jnp.ones_like(params["value"]["kernel"]), "bias": jnp.zeros(1)}
        return {**params, "value": value}

    @learn
    def worst(self, batch):
        return jnp.abs(batch.advantage).max()

    def loop(self, env, learner, state):
        memory = state.memory
        for _ in env.steps(self.horizon):
            action, choice, state.memory = self.explore(
                learner.params, state.scales, env.obs, env.first, state.memory
            )
            env.step(action, choice)
        batch, state.scales, state.discounted = self.prepare(
            learner.params, state.scales, state.discounted, env.rollout, memory
        )
        learner.report({"worst": self.worst(batch)})


@pytest.mark.parametrize("terminates", [False, True])
@pytest.mark.parametrize("kind", ["graph", "host"])
def test_true_values_have_no_advantage(kind, terminates):
    """With exact values every advantage is zero, wherever the rollout or the episode ends.

    Treating truncation as termination, or bootstrapping from the observation after the reset, is off by
    several units here.
    """
    env = GraphWalk(terminates) if kind == "graph" else functools.partial(HostWalk, terminates)
    ppo = Oracle(
        horizon=7,
        discount=DISCOUNT,
        network=Identity(),
        share_torso=True,
        normalise_rewards=False,
    )
    with pytest.warns(sherd.errors.SherdWarning):  # this loop leaves the update out, and with it some fields
        run = sherd.train(ppo, env, steps=7 * 3 * 4, envs=3, eval_episodes=0)
    assert run.metrics["worst"].shape == (4,)
    assert run.metrics["worst"].max() < 1e-4


def test_a_wrong_bootstrap_would_be_seen():
    """The test above can fail: without the truncation flag the same walk shows large advantages."""

    class Confused(GraphWalk):
        def step(self, key, state, action):
            state, obs, reward, terminated, truncated = super().step(key, state, action)
            return state, obs, reward, terminated | truncated, truncated & False

    ppo = Oracle(horizon=7, discount=DISCOUNT, network=Identity(), share_torso=True, normalise_rewards=False)
    with pytest.warns(sherd.errors.SherdWarning):
        run = sherd.train(ppo, Confused(False), steps=7 * 3 * 2, envs=3, eval_episodes=0)
    assert run.metrics["worst"].max() > 5


QUICK = PPO(horizon=16, epochs=2, minibatches=2, hidden=(32,), learning_rate=3e-3, discount=0.0)
SPACES = {
    "discrete": (spaces.Discrete(2), "flat", 40, 0.9),
    "multi-discrete": (spaces.MultiDiscrete([2, 2]), "dict", 40, 0.85),
    "multi-binary": (spaces.MultiBinary(2), "tuple", 40, 0.85),
    "box": (spaces.Box(-1, 1, (2,), np.float32), "flat", 60, 0.75),
    "image": (spaces.Discrete(2), "image", 20, 0.9),
}


@pytest.mark.parametrize("name", mostly_thorough(SPACES, ("box",)))
def test_learns_with_every_kind_of_space(name):
    action, show, iterations, enough = SPACES[name]
    env = Match(action, show)
    run = sherd.train(
        QUICK, env, policy="Fused", steps=iterations * 16 * 16, envs=16, seed=1, eval_episodes=0
    )
    before = run.metrics["episode_return"][:2].mean()
    assert before < enough - 0.1
    assert run.evaluate(64).return_mean > enough


def test_masked_actions_are_never_taken():
    run = sherd.train(
        "ppo", "graph/LegalMoves-v0", policy="Fused", steps=60_000, envs=16, seed=1, eval_episodes=0
    )
    # An illegal action ends an episode early, so with the mask all of them last twenty steps.
    assert np.nanmin(run.metrics["episode_length"]) == 20
    assert run.evaluate(50).return_mean > 14


def test_updates_stop_when_the_policy_has_moved_too_far():
    settings = {"horizon": 16, "epochs": 4, "minibatches": 4, "learning_rate": 0.02, "hidden": (16,)}
    free = sherd.train(PPO(**settings), "graph/CartPole-v1", steps=16 * 4 * 5, envs=4, eval_episodes=0)
    held = sherd.train(
        PPO(**settings, target_kl=1e-3), "graph/CartPole-v1", steps=16 * 4 * 5, envs=4, eval_episodes=0
    )
    assert int(free.cells["learner"].updates) == 5 * 16
    assert 5 <= int(held.cells["learner"].updates) < 40
    assert held.metrics["approx_kl"].max() < free.metrics["approx_kl"].max()


def test_the_learning_rate_falls_to_zero():
    run = sherd.train(
        PPO(horizon=8, hidden=(8,)), "graph/CartPole-v1", steps=8 * 4 * 10, envs=4, eval_episodes=0
    )
    np.testing.assert_allclose(run.metrics["update_scale"], 1 - np.arange(10) / 10, rtol=1e-6)


def test_value_clipping_matters_and_matches_its_formula():
    ppo = PPO(value_clip=0.1)
    old, new, target = jnp.array([[1.0, 1.0]]), jnp.array([[1.5, 1.05]]), jnp.array([[2.0, 2.0]])
    choice = Choice(None, None, old)
    batch = Batch(None, None, choice, None, target, None)
    expected = [[max((1.5 - 2) ** 2, (1.1 - 2) ** 2), (1.05 - 2) ** 2]]
    np.testing.assert_allclose(ppo.value_errors(new, batch), expected, rtol=1e-6)


@dataclass(frozen=True)
class Replaying(PPO):
    """PPO that, instead of learning, replays each rollout's memories and compares them with acting's."""

    @learn
    def gap(self, params, rollout, before, after):
        memories = self.model.unroll(params, rollout.obs, before, rollout.first)[2]
        return jnp.abs(memories[0][-1] - after[0]).max()

    def loop(self, env, learner, state):
        memory = state.memory
        for _ in env.steps(self.horizon):
            action, choice, state.memory = self.explore(
                learner.params, state.scales, env.obs, env.first, state.memory
            )
            env.step(action, choice)
        learner.report({"gap": self.gap(learner.params, env.rollout, memory, state.memory)})


def test_memory_is_reset_exactly_at_episode_starts():
    """The memory that acting carries is what replaying the rollout with resets at `first` gives."""
    ppo = Replaying(horizon=40, network="gru", memory_units=8, hidden=(8,), normalise_rewards=False)
    with pytest.warns(sherd.errors.SherdWarning):  # no update, so its fields are not read
        run = sherd.train(ppo, "CartPole-v1", steps=40 * 4 * 3, envs=4, eval_episodes=0)
    assert run.summary["episodes"] > 10
    assert run.metrics["gap"].max() < 1e-6


class Torso:
    """A user's network: nothing but init and apply."""

    def init(self, key, obs):
        return {"w": 0.3 * jax.random.normal(key, (obs.shape[-1], 16))}

    def apply(self, params, obs):
        return jnp.tanh(obs @ params["w"])


def test_any_network_with_init_and_apply():
    run = sherd.train(
        PPO(network=Torso()), "graph/CartPole-v1", policy="Fused", steps=30_000, seed=1, eval_episodes=0
    )
    assert run.params["torso"]["w"].shape == (4, 16)
    assert np.nanmean(run.metrics["episode_return"][-5:]) > 60


# -- asynchronous policies: V-trace and the second clip

PLAIN = {"horizon": TIME, "hidden": (8,), "discount": 0.9, "gae_lambda": 0.8, "normalise_rewards": False}


def prepared(ppo, params, log_ratio=0.0, value=None, scales=None):
    """The batch of a rollout that somebody else made, who thought so of its actions and states."""
    plain = invented(ppo)
    value = values(ppo, params, plain) if value is None else value
    choice = Choice(plain.action, log_probs(ppo, params, plain) - log_ratio, jnp.asarray(value))
    scales = ppo.state(params)["scales"].initial if scales is None else scales
    batch, scales, _ = ppo.prepare(params, scales, (), plain._replace(extra=choice), ())
    return plain, batch, scales


def test_vtrace_changes_nothing_where_nothing_lags():
    ppo = PPO(**PLAIN).bind(describe("CartPole-v1"))
    params = ppo.init(jax.random.key(0))
    plain, batch, _ = prepared(ppo, params)
    _, corrected, _ = prepared(PPO(**PLAIN, vtrace=True).bind(ppo.spec), params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), corrected, batch)
    np.testing.assert_allclose(batch.target, slow_returns(ppo, params, plain, lam=0.8), atol=1e-5)


def test_vtrace_judges_old_data_as_the_paper_does():
    ppo = PPO(**PLAIN, vtrace=True).bind(describe("CartPole-v1"))
    params = ppo.init(jax.random.key(0))
    log_ratio = jax.random.uniform(jax.random.key(3), (TIME, ENVS), minval=-1.1, maxval=1.1)
    plain, batch, _ = prepared(ppo, params, log_ratio, value=jnp.full((TIME, ENVS), 1e3))
    target, advantage = slow_vtrace(ppo, params, plain, np.exp(log_ratio), trace_lambda=0.8)
    np.testing.assert_allclose(batch.target, target, atol=1e-5)
    np.testing.assert_allclose(batch.advantage, advantage, atol=1e-5)
    # What the first update moves away from is the learner's policy and value, not those that acted.
    np.testing.assert_allclose(batch.choice.log_prob, log_probs(ppo, params, plain), atol=1e-5)
    np.testing.assert_allclose(batch.choice.value, values(ppo, params, plain), atol=1e-5)


def test_the_second_clip_bounds_what_a_harmful_action_costs():
    ratio, advantage = jnp.array([0.5, 2.0, 9.0, 0.5, 2.0, 9.0]), jnp.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    once = [0.5, 1.2, 1.2, -0.8, -2.0, -9.0]
    twice = [0.5, 1.2, 1.2, -0.8, -2.0, -3.0]
    np.testing.assert_allclose(PPO().gains(ratio, advantage), once, rtol=1e-6)
    np.testing.assert_allclose(PPO(dual_clip=3.0).gains(ratio, advantage), twice, rtol=1e-6)
    with pytest.raises(UsageError, match="above 1"):
        PPO(dual_clip=0.5)


# -- PopArt


def test_popart_preserves_values_when_their_scale_changes():
    ppo = PPO(**PLAIN, popart=True).bind(describe("CartPole-v1"))
    params = ppo.init(jax.random.key(0))
    scales = ppo.state(params)["scales"].initial
    obs = jax.random.normal(jax.random.key(1), (5, 4))

    def said(now):
        return ppo.denormalised(now, ppo.model.value(ppo.rescaled(params, now), obs, ()))

    before, now = said(scales.values), scales.values
    for spread in (300.0, 1e-2, 40.0):
        targets = 100 + spread * jax.random.normal(jax.random.key(2), (TIME, ENVS))
        now = ppo.adapted(params, now, targets)
        np.testing.assert_allclose(said(now), before, atol=1e-3)
    assert now.scale.std > 50
    np.testing.assert_allclose(ppo.model.value(params, obs, ()), before, rtol=1e-5)


def test_popart_changes_only_the_units():
    """With values preserved, acting's values, advantages and targets are those of PPO without it."""
    plain = PPO(**PLAIN).bind(describe("CartPole-v1"))
    ppo = PPO(**PLAIN, popart=True).bind(plain.spec)
    params = ppo.init(jax.random.key(0))
    scales = ppo.state(params)["scales"].initial
    scales = scales._replace(
        values=ppo.adapted(params, scales.values, 30 + 20 * jnp.arange(18.0).reshape(9, 2))
    )
    rollout, wanted, empty = prepared(plain, params)
    _, batch, after = prepared(ppo, params, scales=scales)
    for name in ("target", "advantage"):
        found = getattr(batch, name)
        found = ppo.denormalised(after.values, found) if name == "target" else found
        np.testing.assert_allclose(found, getattr(wanted, name), atol=1e-3)
    old = ppo.denormalised(after.values, batch.choice.value)
    np.testing.assert_allclose(old, wanted.choice.value, atol=1e-3)
    args = rollout.obs[0], rollout.first[0], (), jax.random.split(jax.random.key(1), ENVS)
    acted, expected = ppo.explore(params, after, *args)[1], plain.explore(params, empty, *args)[1]
    np.testing.assert_allclose(acted.value, expected.value, atol=1e-3)


def test_popart_is_that_of_the_paper():
    """Keeping the rescaling beside the parameters learns what rescaling the parameters themselves learns."""
    ppo = PPO(**PLAIN, popart=True, learning_rate=0.01).bind(describe("CartPole-v1"))
    ours = rescaled = ppo.init(jax.random.key(0))
    scale, optimiser = popart.initial_scale(), ppo.optimiser()
    our_memory = memory = optimiser.init(ours)
    scales, plain = ppo.state(ours)["scales"].initial, invented(ppo)
    gradient = jax.jit(jax.grad(lambda params, batch, now: ppo.loss(params, batch, now)[0]))
    nothing = jax.tree.map(jnp.zeros_like, ours["value"])
    for turn in range(4):
        rollout = plain._replace(reward=50 * (turn + 1) * plain.reward + 20)
        value = ppo.denormalised(scales.values, values(ppo, ppo.rescaled(ours, scales.values), plain))
        choice = Choice(plain.action, log_probs(ppo, ours, plain), value)
        batch, scales, _ = ppo.prepare(ours, scales, (), rollout._replace(extra=choice), ())
        new = popart.update_scale(scale, popart.denormalise(scales.values.scale, batch.target), 0.03)
        rescaled = {**rescaled, "value": popart.rescale_head(rescaled["value"], scale, new)}
        scale = new
        for _ in range(3):
            steps, our_memory = optimiser.update(gradient(ours, batch, scales.values), our_memory, ours)
            ours = optax.apply_updates(ours, steps)
            unchanged = scales.values._replace(added=nothing)
            steps, memory = optimiser.update(gradient(rescaled, batch, unchanged), memory, rescaled)
            rescaled = optax.apply_updates(rescaled, steps)
    assert scale.std > 50
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), ppo.rescaled(ours, scales.values), rescaled
    )


@thorough
def test_popart_learns_values_of_any_size():
    """The value head must reach thousands by steps of a thousandth; without PopArt it does not."""

    class Rich(GraphWalk):
        def step(self, key, state, action):
            state, obs, reward, *ended = super().step(key, state, action)
            return state, obs, 1000 * reward, *ended

    def missing(popart):
        ppo = PPO(horizon=16, hidden=(16,), discount=DISCOUNT, normalise_rewards=False, popart=popart)
        run = sherd.train(ppo, Rich(True), "Fused", steps=16 * 8 * 60, envs=8, seed=1, eval_episodes=0)
        obs = Rich(True).values[:-1, None]
        scales, bound = run.cells["scales"], ppo.bind(Rich(True).spec)
        said = bound.model.value(bound.rescaled(run.params, scales.values), obs, ())
        return np.abs(bound.denormalised(scales.values, said) - 1000 * obs[:, 0]).mean()

    assert missing(popart=True) < 500 < 2000 < missing(popart=False)
