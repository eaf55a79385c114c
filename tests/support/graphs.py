"""Graphs that several tests of the graph room look at, traced once, and how their text is compared."""

import functools
import re
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

import sherd
from sherd.algorithms.ppo import PPO
from sherd.author import Algorithm, act, learn, shared
from sherd.envs import describe


@functools.cache
def feed_forward():
    """PPO on CartPole."""
    return sherd.trace(PPO(), describe("CartPole-v1"), envs=8)


@functools.cache
def recurrent():
    """PPO with a GRU and running statistics on Pendulum: no state cell is empty."""
    algorithm = PPO(network="gru", normalise_observations=True, normalise_rewards=True)
    return sherd.trace(algorithm, describe("Pendulum-v1"), envs=8)


@dataclass(frozen=True)
class Replaying(Algorithm):
    """Replay, a target that is written without a node, a report with a name that XML would mangle."""

    steps: int = 4

    def init(self, key):
        return {"w": jnp.zeros((4, 2))}

    def optimiser(self):
        return optax.sgd(0.1)

    def state(self, params):
        return {"target": shared(params), "count": shared(jnp.zeros(()))}

    @act
    def explore(self, params, obs, key):
        choose = jax.vmap(lambda o, k: jax.random.categorical(k, o @ params["w"]))
        return choose(obs, key).astype(jnp.int32)

    @learn
    def bump(self, count):
        return count + 1

    def loss(self, params, target, sample):
        return ((sample.data.obs @ params["w"] - sample.data.next_obs @ target["w"]) ** 2).mean()

    def loop(self, env, learner, state, replay):
        for _ in env.steps(self.steps):
            env.step(self.explore(learner.params, env.obs))
        replay.add(env.rollout, capacity=1000)
        for sample in replay.sample(16, times=2):
            learner.step(self.loss, state.target, sample)
        state.target = learner.params
        learner.report({"a<b & c": state.count})
        state.count = self.bump(state.count)


@functools.cache
def replaying():
    """A loop with replay."""
    return sherd.trace(Replaying(), describe("CartPole-v1"), envs=8)


def without_lines(text):
    """The text without line numbers, which move whenever anybody edits the file above."""
    return re.sub(r"\.py:\d+", ".py:*", text)
