"""DQN: its loss against slow formulas from the papers, its values against known ones, and its flags."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from tasks import DISCOUNT, GraphWalk, Identity, Match
from thorough import mostly_thorough, thorough

import sherd
from sherd.algorithms.dqn import DQN, epsilon_greedy
from sherd.author import Transition
from sherd.author.replay import Sample
from sherd.spaces import EnvSpec

DRAWS, ENVS, ACTIONS, GAMMA = 4, 3, 4, 0.9
BOX = spaces.Box(-1, 1, (3,), np.float32)
MOVES = spaces.Discrete(ACTIONS, start=5)
SPEC = EnvSpec("toy", BOX, MOVES, "graph")
MASKED = EnvSpec("toy", spaces.Dict({"x": BOX, "action_mask": spaces.MultiBinary(ACTIONS)}), MOVES, "graph")
SMALL = {"n_step": 1, "discount": GAMMA, "hidden": (8,), "memory_units": 4}


def observations(rng, lead, masked=False):
    seen = rng.normal(size=(*lead, 3)).astype(np.float32)
    if not masked:
        return seen
    legal = rng.integers(0, 2, (*lead, ACTIONS), dtype=np.int8)
    legal[..., 0] |= ~legal.any(-1)
    return {"x": seen, "action_mask": legal}


def window(rng, length, memory=(), masked=False):
    """Steps [length, draw, env] in which some episodes terminate and some are truncated."""
    lead = (length, DRAWS, ENVS)
    terminated, truncated = rng.random(lead) < 0.2, rng.random(lead) < 0.2
    ended = terminated | truncated
    first = np.concatenate([rng.random((1, *lead[1:])) < 0.5, ended[:-1]])
    obs = observations(rng, lead, masked)
    reached = observations(rng, lead, masked)
    if not masked:  # where an episode goes on, a step leads to the next observation
        reached[:-1] = np.where(ended[:-1, ..., None], reached[:-1], obs[1:])
    return Transition(
        obs=obs,
        action=rng.integers(5, 5 + ACTIONS, lead).astype(np.int32),
        reward=rng.normal(size=lead).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        next_obs=reached,
        first=first,
        extra=memory,
    )


def squash(x):
    return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + 1e-3 * x


def unsquash(x):
    return np.sign(x) * (((np.sqrt(1 + 4e-3 * (abs(x) + 1 + 1e-3)) - 1) / 2e-3) ** 2 - 1)


def wanted(dqn, begin, step, online, target, q):
    """The target of the step `begin` of one row, term by term; a step is (reward, terminated, truncated).

    `online` and `target` are the networks' outputs for where each step led; `q` makes values of them.
    """
    total, factor = 0.0, 1.0
    for t in range(begin, min(begin + dqn.n_step, len(step))):
        reward, terminated, truncated = step[t]
        total, factor = total + factor * reward, factor * GAMMA
        if terminated:
            factor = 0.0
        if terminated or truncated:
            break
    best = int(np.argmax(q(online[t] if dqn.double else target[t], t)))
    future = np.asarray(target[t][best], float)
    if dqn.atoms == 1:
        return squash(total + factor * unsquash(future)) if dqn.rescale else total + factor * future
    chance = np.exp(future) / np.exp(future).sum()
    return projected(dqn, [total + factor * place for place in places(dqn)], chance)


def places(dqn):
    return np.linspace(dqn.low, dqn.high, dqn.atoms)


def means(dqn, outputs):
    if dqn.atoms == 1:
        return outputs
    chance = np.exp(np.asarray(outputs, float))
    return (chance * places(dqn)).sum(-1) / chance.sum(-1)


def projected(dqn, values, chance):
    """Algorithm 1 of Bellemare et al. (2017)."""
    mass, gap = np.zeros(dqn.atoms), (dqn.high - dqn.low) / (dqn.atoms - 1)
    for value, probability in zip(values, chance):
        b = (min(max(value, dqn.low), dqn.high) - dqn.low) / gap
        lower, upper = int(np.floor(b)), int(np.ceil(b))
        if lower == upper:
            mass[lower] += probability
        else:
            mass[lower] += probability * (upper - b)
            mass[upper] += probability * (b - lower)
    return mass


def error_of(dqn, chosen, aim):
    """(loss, size of the error) of one step."""
    if dqn.atoms > 1:
        logs = np.asarray(chosen, float) - np.log(np.exp(np.asarray(chosen, float)).sum())
        entropy = -(aim * logs).sum()
        return entropy, entropy
    error = abs(float(chosen) - aim)
    return (0.5 * error**2 if error <= 1 else error - 0.5), error


def made(flags, spec=SPEC):
    dqn = DQN(**{**SMALL, **flags}).bind(spec)
    return dqn, dqn.init(jax.random.key(0)), dqn.init(jax.random.key(1))


FEED_FORWARD = {
    "plain": {"double": False},
    "double": {},
    "dueling": {"dueling": True},
    "n-step": {"n_step": 3},
    "distribution": {"atoms": 5, "low": -2.0, "high": 2.0, "n_step": 2},
    "rescaled": {"rescale": True, "n_step": 3},
    "masked": {"double": False, "n_step": 2},
}


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_the_loss_is_what_the_papers_say(name):
    dqn, params, target = made(FEED_FORWARD[name], MASKED if name == "masked" else SPEC)
    rng = np.random.default_rng(3)
    steps = window(rng, dqn.n_step, masked=name == "masked")
    weight = rng.random((DRAWS, ENVS)).astype(np.float32)
    drawn = steps if dqn.n_step > 1 else jax.tree.map(lambda leaf: leaf[0], steps)
    loss, _, priority = jax.jit(dqn.loss)(params, target, Sample(drawn, (), weight), jax.random.key(0))

    see = jax.jit(dqn.model.outputs)
    outputs = [np.asarray(see(network, steps.next_obs)) for network in (params, target)]
    now, losses = np.asarray(see(params, steps.obs)), []
    for row in np.ndindex(DRAWS, ENVS):
        pick = (slice(None), *row)
        legal = steps.next_obs["action_mask"][pick] if name == "masked" else np.ones((dqn.n_step, ACTIONS))

        def q(out, t, legal=legal):
            return np.where(legal[t], means(dqn, out), -np.inf)

        step = list(zip(steps.reward[pick], steps.terminated[pick], steps.truncated[pick]))
        aim = wanted(dqn, 0, step, outputs[0][pick], outputs[1][pick], q)
        one, size = error_of(dqn, now[(0, *row, steps.action[(0, *row)] - 5)], aim)
        losses.append(weight[row] * one)
        assert priority[row] == pytest.approx(size**0.5, rel=2e-3)
    assert loss == pytest.approx(np.mean(losses), rel=1e-3)


RECURRENT = {
    "r2d2": {"n_step": 3, "rescale": True, "dueling": True},
    "no burn-in": {"burn_in": 0, "double": False},
    "distribution": {"atoms": 5, "low": -2.0, "high": 2.0, "n_step": 2},
}


@pytest.mark.parametrize("name", RECURRENT)
def test_sequences_are_learnt_step_by_step(name):
    """The same loss and priorities, from one network step after the other, each with its own memory."""
    dqn, params, target = made({"network": "gru", "sequence": 5, "burn_in": 3, **RECURRENT[name]})
    rng, model = np.random.default_rng(4), dqn.model
    length = dqn.burn_in + dqn.sequence
    memory = rng.normal(size=(length, DRAWS, ENVS, 4)).astype(np.float32)
    steps = window(rng, length, memory)
    assert (steps.truncated & ~steps.terminated)[dqn.burn_in : -1].any()
    sample = Sample(steps, (), np.ones((DRAWS, ENVS), np.float32))
    loss, _, priority = jax.jit(dqn.loss)(params, target, sample, jax.random.key(0))

    losses, step = [], jax.jit(model.step)
    for row in np.ndindex(DRAWS, ENVS):
        now, ahead = [], {0: [], 1: []}
        for which, network in enumerate((params, target)):
            held = memory[(0, *row)][None]
            for t in range(length):
                out, held = step(network, steps.obs[(t, *row)][None], held, steps.first[(t, *row)][None])
                reached, _ = step(network, steps.next_obs[(t, *row)][None], held, np.zeros(1, bool))
                ahead[which].append(np.asarray(reached[0]))
                if which == 0:
                    now.append(np.asarray(out[0]))
        pick = (slice(None), *row)
        facts = list(zip(steps.reward[pick], steps.terminated[pick], steps.truncated[pick]))
        sizes = []
        for t in range(dqn.burn_in, length):
            aim = wanted(dqn, t, facts, ahead[0], ahead[1], lambda out, _: means(dqn, out))
            one, size = error_of(dqn, now[t][steps.action[(t, *row)] - 5], aim)
            losses.append(one)
            sizes.append(size)
        expected = (0.9 * max(sizes) + 0.1 * np.mean(sizes)) ** 0.5
        assert priority[row] == pytest.approx(expected, rel=5e-3)
    assert loss == pytest.approx(np.mean(losses), rel=1e-3)


def test_no_gradient_flows_into_the_burn_in():
    dqn, params, target = made({"network": "gru", "sequence": 3, "burn_in": 2})
    steps = window(np.random.default_rng(5), 5, np.zeros((5, DRAWS, ENVS, 4), np.float32))
    steps = jax.tree.map(jnp.asarray, steps._replace(first=np.zeros_like(steps.first)))

    def loss(obs):
        sample = Sample(steps._replace(obs=obs), (), np.ones((DRAWS, ENVS), np.float32))
        return dqn.loss(params, target, sample, jax.random.key(0))[0]

    slope = jax.jit(jax.grad(loss))(steps.obs)
    assert jnp.abs(slope[:2]).max() == 0
    assert jnp.abs(slope[2:]).max() > 0


WALK = {
    "discount": DISCOUNT,
    "network": Identity(),
    "batch": 32,
    "capacity": 2_000,
    "warm_up": 64,
    "updates": 8,
    "learning_rate": 0.03,
}
WALKS = {
    "plain": {"double": False, "n_step": 1, "sync": 8},
    "distribution": {
        "atoms": 31,
        "low": -15.0,
        "high": 15.0,
        "n_step": 3,
        "prioritised": True,
        "sync": 10,
    },
}


@pytest.mark.parametrize("name", mostly_thorough(WALKS, ("plain",)))
def test_values_become_the_true_ones(name):
    """A walk shows its true value; treating truncation as an end, or a target that stays, is far off."""
    walk, dqn = GraphWalk(False), DQN(**WALK, **WALKS[name])
    run = sherd.train(dqn, walk, "Fused", steps=12_000, envs=8, seed=1, eval_episodes=0)
    model, values = run.algorithm.bind(walk.spec).model, walk.values[:5, None]
    found = model.q(model.outputs(run.params, values))
    np.testing.assert_allclose(found, jnp.broadcast_to(values, (5, 2)), atol=0.6)
    updates = int(run.cells["learner"].updates)
    gap = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), run.params, run.cells["target"])
    assert (max(jax.tree.leaves(gap)) == 0) == (updates % dqn.sync == 0) == (name == "plain")


def test_the_target_may_follow_slowly():
    assert DQN(tau=0.1).follow(jnp.float32(1), jnp.float32(3)) == pytest.approx(1.2)
    assert DQN().follow(jnp.float32(1), jnp.float32(3)) == 3


QUICK = {"horizon": 8, "batch": 32, "updates": 8, "warm_up": 64, "learning_rate": 3e-3, "hidden": (32,)}


@thorough
def test_rainbow_never_takes_a_masked_action():
    flags = {"dueling": True, "prioritised": True, "noisy": True, "atoms": 21, "low": 0.0, "high": 10.0}
    dqn = DQN(**QUICK, **flags, discount=0.5, capacity=10_000)
    run = sherd.train(dqn, "graph/LegalMoves-v0", "Fused", steps=10_000, envs=8, seed=1, eval_episodes=0)
    # An illegal action ends an episode early, so with the mask all of them last twenty steps.
    assert np.nanmin(run.metrics["episode_length"]) == 20
    assert np.nanmean(run.metrics["episode_return"][-30:]) > 12


def test_r2d2_finds_the_rewarded_action():
    flags = {"network": "gru", "memory_units": 16, "sequence": 4, "burn_in": 2, "stride": 2}
    dqn = DQN(**QUICK, **flags, prioritised=True, rescale=True, discount=0.0, capacity=2_000)
    run = sherd.train(dqn, Match(spaces.Discrete(2)), "Fused", steps=5_000, envs=8, seed=1, eval_episodes=0)
    assert run.metrics["episode_return"][:3].mean() < 0.7
    assert run.evaluate(64).return_mean > 0.95


def test_random_actions_are_legal_and_as_frequent_as_asked():
    keys, q = jax.random.split(jax.random.key(0), 4000), jnp.array([-1e9, 1.0, 3.0, 2.0])
    chosen = np.asarray(jax.vmap(lambda key: epsilon_greedy(key, q, 0.6))(keys))
    counts = np.bincount(chosen, minlength=4) / 4000
    np.testing.assert_allclose(counts, [0, 0.2, 0.6, 0.2], atol=0.03)
    assert counts[0] == 0


def test_schedules_end_where_they_should():
    dqn = DQN(epsilon_end=0.1, explore_until=0.5, beta=0.4)
    epsilon = [float(dqn.randomness(jnp.float32(p))) for p in (0, 0.25, 0.5, 1)]
    assert epsilon == pytest.approx([1, 0.55, 0.1, 0.1])
    assert [float(dqn.correction(jnp.float32(p))) for p in (0, 0.5, 1)] == pytest.approx([0.4, 0.7, 1.0])
    assert DQN(noisy=True).randomness(jnp.float32(0)) == 0


@thorough
@pytest.mark.slow
def test_balances_a_pole():
    run = sherd.train(DQN(), "graph/CartPole-v1", "Fused", steps=100_000, envs=8, seed=1)
    assert run.summary["return_mean"] > 450
