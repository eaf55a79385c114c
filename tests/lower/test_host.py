"""The host program: rollouts are written in place, and nothing that was kept changes underneath."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import Replaying
from gymnasium import spaces
from small import QLearning, Reinforce

import sherd
from sherd import act, learn, per_env
from sherd.envs import describe, make_host
from sherd.lower.driver import Driver
from sherd.lower.host import HostProgram, Setting

WIDE = 120_000  # wide enough that JAX reads the observation in place instead of copying it


class Counter(gymnasium.Env):
    """Every observation is different: it is filled with the number of the step."""

    observation_space = spaces.Box(0, np.inf, (WIDE,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(WIDE, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(WIDE, self.t, np.float32), 0.0, False, False, {}


@dataclass(frozen=True)
class Keeper(Reinforce):
    """Keeps an observation, unchanged by a stage or not touched by any, and its sum; compares them later."""

    through_a_stage: bool = True
    horizon: int = 3

    def init(self, key):
        del key
        return {"w": jnp.zeros((WIDE, 2))}

    def state(self, params):
        blank = jnp.zeros(WIDE)
        return {"kept": per_env(blank), "sums": per_env(jnp.zeros(()))}

    @act
    def unchanged(self, obs):
        return obs

    @act
    def total(self, obs):
        return obs.mean(-1)

    @act
    def choose(self, obs):
        return jnp.zeros(obs.shape[0], jnp.int32)

    @learn
    def gap(self, kept, sums):
        return jnp.abs(kept.mean(-1) - sums).max()

    @learn
    def twice(self, sums):
        return {"ignored": jnp.zeros((2, sums.shape[0]))}

    def loop(self, env, learner, state):
        learner.report({"gap": self.gap(state.kept, state.sums), "mean": self.gap(state.kept, 0.0)})
        state.kept = self.unchanged(env.obs) if self.through_a_stage else env.obs
        state.sums = self.total(env.obs)
        # Several rollouts an iteration: both sets of arrays are filled before the next one begins.
        for _ in learner.shuffled(self.twice(state.sums), epochs=3, minibatches=1):
            for _ in env.steps(self.horizon):
                env.step(self.choose(env.obs))


@pytest.mark.filterwarnings("ignore::sherd.errors.SherdWarning")
@pytest.mark.parametrize("through_a_stage", [True, False])
def test_what_is_kept_does_not_change_underneath(through_a_stage):
    algorithm = Keeper(through_a_stage=through_a_stage)
    run = sherd.train(algorithm, Counter, steps=3 * 3 * 2 * 6, envs=2, eval_episodes=0)
    np.testing.assert_allclose(run.metrics["mean"], [0, 0, 9, 18, 27, 36])
    np.testing.assert_allclose(run.metrics["gap"], 0, atol=1e-3)


def test_rollouts_are_written_in_place():
    """What a step hands out are views of the rollout, and the rollout is right."""
    env = make_host("CartPole-v1", 3, 0)
    driver, trips = Driver(env, 4), 4
    state = driver.start()
    driver.begin()
    states, transitions = [jax.tree.map(np.copy, state)], []
    for _ in range(trips):
        state, transition, _ = driver.step(state, np.ones(3, np.int32))
        states.append(jax.tree.map(np.copy, state))
        transitions.append(jax.tree.map(np.copy, transition))
    _, rollout, _ = driver.stacked
    assert np.shares_memory(rollout.obs, driver._current.states[1].obs)
    for t, (before, transition) in enumerate(zip(states, transitions)):
        np.testing.assert_array_equal(rollout.obs[t], before.obs)
        np.testing.assert_array_equal(rollout.next_obs[t], transition.next_obs)
        np.testing.assert_array_equal(rollout.first[t], before.first)


def test_two_rollouts_use_two_sets_of_arrays():
    env = make_host("CartPole-v1", 3, 0)
    driver = Driver(env, 2)
    state = driver.start()
    kept = []
    for _ in range(2):
        driver.begin()
        for _ in range(2):
            state, _, _ = driver.step(state, np.zeros(3, np.int32))
        kept.append(driver.stacked[1].obs)
    assert not np.shares_memory(*kept)
    np.testing.assert_array_equal(kept[1][0], state_before(kept, env))


def state_before(kept, env):
    """The observation with which the second rollout began: where the first one ended."""
    again = make_host("CartPole-v1", 3, 0)
    driver = Driver(again, 2)
    state = driver.start()
    driver.begin()
    for _ in range(2):
        state, _, _ = driver.step(state, np.zeros(3, np.int32))
    return state.obs


def test_an_iteration_is_one_call_to_act_and_one_to_learn():
    """Everything between two steps of the simulators compiles together, and so does all of the learning."""
    from sherd.algorithms.ppo import PPO
    from sherd.lower.packed import PackedRegion
    from sherd.lower.parts import HostNode, HostRegion
    from sherd.lower.scopes import HostScope
    from sherd.lower.share import Share

    graph = sherd.trace(PPO(horizon=4, hidden=(8,)), describe("CartPole-v1"), envs=2)
    program = HostProgram(graph, Setting(0, 10, Share.of_replica(2), make_host("CartPole-v1", 2, 0)))
    acting, learning = program._parts
    assert isinstance(acting, HostScope)
    assert [type(part) for part in acting.parts] == [PackedRegion, HostNode]
    assert isinstance(learning, HostRegion)
    donated = {ref.value for ref in learning.region.donated}
    assert donated >= {carry.inner for carry in graph.root.carries if carry.cell == "learner"}


def test_episode_returns_are_those_of_the_simulator():
    run = sherd.train(
        QLearning(horizon=50, capacity=400), "CartPole-v1", steps=50 * 4 * 4, envs=4, eval_episodes=0
    )
    total = (run.metrics["episode_return"] * run.metrics["episodes"])[run.metrics["episodes"] > 0].sum()
    lengths = (run.metrics["episode_length"] * run.metrics["episodes"])[run.metrics["episodes"] > 0].sum()
    assert total == lengths  # CartPole pays 1 a step
    unfinished = np.asarray(run.cells["env"].episode_length).sum()
    assert lengths + unfinished == 50 * 4 * 4


@dataclass(frozen=True)
class Swapping(Reinforce):
    """Swaps two cells at every step."""

    def state(self, params):
        return {"left": per_env(jnp.float32(1)), "right": per_env(jnp.float32(2))}

    def loop(self, env, learner, state):
        for _ in env.steps(self.horizon):
            action, extra = self.explore(learner.params, env.obs)
            left, right = state.left, state.right
            state.left, state.right = right, left
            env.step(action, extra)
        learner.step(self.loss, self.advantages(env.rollout))


@pytest.mark.parametrize("env", ["CartPole-v1", "graph/CartPole-v1"])
@pytest.mark.parametrize("horizon", [4, 5])
def test_cells_may_trade_places(env, horizon):
    run = sherd.train(Swapping(horizon=horizon), env, steps=horizon * 2, envs=2, eval_episodes=0)
    left, right = run.cells["left"], run.cells["right"]
    assert (float(left[0]), float(right[0])) == ((1, 2) if horizon == 4 else (2, 1))


@pytest.mark.parametrize("env", ["CartPole-v1", "graph/CartPole-v1"])
def test_two_cells_may_be_set_to_one_value(env):
    """A target that is set to the parameters is their memory: nobody may give it up for the next ones."""
    run = sherd.train(Replaying(), env, steps=96, envs=8, eval_episodes=0)
    learner, target = run.cells["learner"].params, run.cells["target"]
    np.testing.assert_array_equal(learner["w"], target["w"])
