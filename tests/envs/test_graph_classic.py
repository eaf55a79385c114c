"""Our classic control tasks against Gymnasium itself."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.envs.graph import registry
from sherd.envs.graph.classic import State
from sherd.spaces import carried_dtype

ROWS = 3000
NAMES = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"]
LIMITS = {"CartPole-v1": 500, "Acrobot-v1": 500, "MountainCar-v0": 200, "Pendulum-v1": 200}


def random_states(name: str, rng: np.random.Generator) -> np.ndarray:
    """States all over the space; in half of the rows, close to where an episode ends or a bound acts."""
    half, edge = ROWS // 2, rng.choice([-1.0, 1.0], ROWS // 2)
    if name == "CartPole-v1":
        states = rng.uniform(-1, 1, (ROWS, 4)) * [2.5, 3, 0.25, 3]
        states[:half, 0] = edge * (2.4 + rng.normal(0, 0.02, half))
        states[: half // 2, 2] = edge[: half // 2] * (0.2095 + rng.normal(0, 0.02, half // 2))
    elif name == "Acrobot-v1":
        states = rng.uniform(-1, 1, (ROWS, 4)) * [np.pi, np.pi, 4 * np.pi, 9 * np.pi]
        states[:half] = rng.normal(0, 0.3, (half, 4))
        states[:half, 0] += 2.1
    elif name == "MountainCar-v0":
        states = np.column_stack([rng.uniform(-1.2, 0.6, ROWS), rng.uniform(-0.07, 0.07, ROWS)])
        states[:half, 0] = np.where(edge > 0, 0.5, -1.2) + np.abs(rng.normal(0, 0.03, half))
    else:
        states = np.column_stack([rng.uniform(-20, 20, ROWS), rng.uniform(-8, 8, ROWS)])
        states[:half, 1] = edge * (8 - np.abs(rng.normal(0, 0.3, half)))
    return states.astype(np.float32)


def random_actions(env: gymnasium.Env, rng: np.random.Generator, count: int) -> np.ndarray:
    """Actions in the dtypes that Sherd carries; torques beyond the bounds too, which the task must clip."""
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return rng.integers(0, space.n, count).astype(np.int32)
    return rng.uniform(-3, 3, (count, 1)).astype(np.float32)


def reference_step(env: gymnasium.Env, state: np.ndarray, action: np.ndarray) -> tuple:
    """One step of Gymnasium's own code from a given state: (state, obs, reward, terminated)."""
    inner = env.unwrapped
    inner.state = state.astype(np.float64)
    inner.steps_beyond_terminated = None
    # An int for the discrete tasks, as a user would pass, so that numpy computes in float64.
    obs, reward, terminated, _, _ = inner.step(int(action) if action.ndim == 0 else action)
    return np.array(inner.state), obs, reward, terminated


def margin(name: str, state: np.ndarray) -> np.ndarray:
    """The distance of next states from the thresholds at which rounding decides about the end."""
    if name == "CartPole-v1":
        return np.minimum(abs(abs(state[:, 0]) - 2.4), abs(abs(state[:, 2]) - np.deg2rad(12)))
    if name == "Acrobot-v1":
        return abs(-np.cos(state[:, 0]) - np.cos(state[:, 1] + state[:, 0]) - 1)
    if name == "MountainCar-v0":
        return np.minimum(abs(state[:, 0] - 0.5), np.where(state[:, 0] > 0.4, abs(state[:, 1]), 1))
    return np.ones(len(state))


def sample(name: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Random states and actions, and what Gymnasium makes of them: state, obs, reward, terminated."""
    rng, reference = np.random.default_rng(0), gymnasium.make(name)
    states, actions = random_states(name, rng), random_actions(reference, rng, ROWS)
    results = [reference_step(reference, state, action) for state, action in zip(states, actions)]
    return states, actions, [np.array(column) for column in zip(*results)]


def state_gap(name: str, got: jax.Array, want: np.ndarray) -> np.ndarray:
    """The relative error of next states; for Acrobot a whole turn is none, as pi may round to -pi."""
    gap = np.asarray(got, np.float64) - want
    if name == "Acrobot-v1":
        gap[:, :2] = (gap[:, :2] + np.pi) % (2 * np.pi) - np.pi
    return abs(gap) / (1 + abs(want))


@pytest.mark.parametrize("name", NAMES)
def test_transitions_match_gymnasium(name: str) -> None:
    states, actions, (want_state, want_obs, want_reward, want_end) = sample(name)
    env = registry.make(f"graph/{name}")
    start = State(jnp.asarray(states), jnp.zeros(ROWS, jnp.int32))
    after, obs, reward, end, truncated = jax.jit(jax.vmap(env.step, (None, 0, 0)))(None, start, actions)

    assert after.physics.dtype == obs.dtype == reward.dtype == jnp.float32
    # Near its top speeds (which play does not reach) Acrobot's step amplifies even the rounding of float32.
    sane = (abs(states[:, 2:]) < [8, 16]).all(1) if name == "Acrobot-v1" else np.ones(ROWS, bool)
    assert sane.sum() > ROWS // 2
    assert np.all(state_gap(name, after.physics, want_state)[sane] <= 1e-5)
    np.testing.assert_allclose(obs[sane], want_obs[sane], rtol=1e-5, atol=1e-5)
    clear = margin(name, want_state) > 1e-5
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(np.asarray(end)[clear], want_end[clear])
    np.testing.assert_allclose(np.asarray(reward)[clear], want_reward[clear], rtol=1e-5, atol=1e-5)
    if name != "Pendulum-v1":
        assert 0.05 < want_end.mean() < 0.95, "the sample must contain both ends and continuations"
    assert not truncated.any()
    assert (np.asarray(after.t) == 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_equations_are_gymnasiums(name: str) -> None:
    """In float64 nothing but the formulas is left to differ, over the whole space."""
    states, actions, (want_state, want_obs, want_reward, want_end) = sample(name)
    with jax.enable_x64(True):
        env = registry.make(f"graph/{name}")
        start = State(jnp.asarray(states, jnp.float64), jnp.zeros(ROWS, jnp.int32))
        after, obs, reward, end, _ = jax.jit(jax.vmap(env.step, (None, 0, 0)))(None, start, actions)
        assert after.physics.dtype == jnp.float64
        assert np.all(state_gap(name, after.physics, want_state) <= 1e-9)
        np.testing.assert_allclose(obs, want_obs, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(end, want_end)
        np.testing.assert_allclose(reward, want_reward, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_whole_episodes_match_gymnasium(name: str) -> None:
    """Both free-run in float64 and are joined every 100 steps, before chaos amplifies the last bit."""
    lengths = []
    with jax.enable_x64(True):
        env = registry.make(f"graph/{name}")
        step = jax.jit(lambda state, action: env.step(None, state, action))
        for seed in range(2):
            reference, rng = gymnasium.make(name), np.random.default_rng(seed)
            reference.reset(seed=seed)
            state, ended = State(jnp.zeros(0), jnp.int32(0)), False
            while not ended:
                if int(state.t) % 100 == 0:
                    state = state._replace(physics=jnp.array(reference.unwrapped.state, jnp.float64))
                action = long_action(name, np.asarray(state.physics), rng)
                state, obs, reward, terminated, truncated = step(state, action)
                want = reference.step(int(action) if action.ndim == 0 else action)
                np.testing.assert_allclose(obs, want[0], atol=1e-5, rtol=1e-5)
                np.testing.assert_allclose(reward, want[1], atol=1e-5, rtol=1e-5)
                assert (bool(terminated), bool(truncated)) == want[2:4], f"step {state.t}"
                ended = want[2] or want[3]
            lengths.append(int(state.t))
    assert max(lengths) == LIMITS[name], "one of the episodes must reach the time limit"


def long_action(name: str, physics: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Actions that make long episodes: CartPole balances, the others act at random."""
    if name == "CartPole-v1":
        return np.array(int(physics[2] + 0.5 * physics[3] + 0.1 * physics[1] > 0), np.int32)
    if name == "Pendulum-v1":
        return rng.uniform(-2, 2, (1,)).astype(np.float32)
    return np.array(rng.integers(0, 3), np.int32)


@pytest.mark.parametrize("name", NAMES)
def test_truncation_comes_at_gymnasiums_time_limit(name: str) -> None:
    env, limit = registry.make(f"graph/{name}"), gymnasium.spec(name).max_episode_steps
    assert limit == LIMITS[name]
    state, _ = env.reset(jax.random.key(0))
    action = np.zeros(env.spec.action.shape, carried_dtype(env.spec.action))
    flags = [
        bool(env.step(None, state._replace(t=jnp.int32(t)), action)[4]) for t in (0, limit - 2, limit - 1)
    ]
    assert flags == [False, False, True]


def test_an_episode_may_terminate_and_be_truncated_at_once() -> None:
    env = registry.make("graph/CartPole-v1")
    falling = State(jnp.array([0.0, 0.0, 0.209, 3.0]), jnp.int32(499))
    _, _, reward, terminated, truncated = env.step(None, falling, 0)
    assert (float(reward), bool(terminated), bool(truncated)) == (1.0, True, True)


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_gymnasiums(name: str) -> None:
    reference, env = gymnasium.make(name), registry.make(f"graph/{name}")
    assert env.spec.observation == reference.observation_space
    assert env.spec.action == reference.action_space
    assert (env.spec.id, env.spec.kind) == (f"graph/{name}", "graph")


@pytest.mark.parametrize("name", NAMES)
def test_starts_are_distributed_as_gymnasiums(name: str) -> None:
    """Range, mean and spread of every coordinate; uniform draws, so these three describe them."""
    env, reference = registry.make(f"graph/{name}"), gymnasium.make(name)
    state, obs = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 4000))
    mine = np.asarray(state.physics)
    reference.reset(seed=0)
    theirs = np.array([reference.reset() and reference.unwrapped.state for _ in range(4000)])
    spread = theirs.std(0)
    assert np.all(abs(mine.mean(0) - theirs.mean(0)) <= 0.1 * spread)
    assert np.all(abs(mine.std(0) - spread) <= 0.05 * spread)
    assert np.all(abs(mine.min(0) - theirs.min(0)) <= 0.02 * spread)
    assert np.all(abs(mine.max(0) - theirs.max(0)) <= 0.02 * spread)
    correlation = np.corrcoef(mine[:, spread > 0].T) - np.eye((spread > 0).sum())
    assert np.all(abs(correlation) < 0.1)
    assert all(row in env.spec.observation for row in np.asarray(obs[:100]))
    assert not state.t.any()
