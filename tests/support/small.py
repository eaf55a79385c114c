"""Small algorithms and environments that several tests use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sherd import Algorithm, act, learn, per_env, shared


def tree_difference(one: Any, two: Any) -> float:
    """The largest absolute difference between matching leaves."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return max(
        float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float)), initial=0)) for a, b in pairs
    )


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """A linear softmax policy and REINFORCE: the smallest complete algorithm."""

    horizon: int = 8
    learning_rate: float = 0.05

    def init(self, key):
        width = int(np.prod(self.spec.observation.shape))
        return {"w": 0.01 * jax.random.normal(key, (width, int(self.spec.action.n)))}

    def optimiser(self):
        return optax.sgd(self.learning_rate)

    @act
    def explore(self, params, obs, key):
        logits = obs @ params["w"]
        return jax.vmap(jax.random.categorical)(key, logits).astype(jnp.int32), {"logits": logits}

    @learn
    def advantages(self, rollout):
        reward_to_go = jnp.cumsum(rollout.reward[::-1], axis=0)[::-1]
        return {"obs": rollout.obs, "action": rollout.action, "gain": reward_to_go - reward_to_go.mean()}

    def loss(self, params, batch):
        log_probs = jax.nn.log_softmax(batch["obs"] @ params["w"])
        chosen = jnp.take_along_axis(log_probs, batch["action"][..., None], -1)[..., 0]
        return -(chosen * batch["gain"]).mean(), {"entropy": -(jnp.exp(log_probs) * log_probs).sum(-1).mean()}

    def loop(self, env, learner):
        rollout = env.unroll(self.explore, learner.params, self.horizon)
        learner.step(self.loss, self.advantages(rollout))

    def play(self, env, learner):
        env.step(self.exploit(learner.params, env.obs))

    @act
    def exploit(self, params, obs):
        return (obs @ params["w"]).argmax(-1).astype(jnp.int32)


@dataclass(frozen=True)
class Explicit(Reinforce):
    """The same with its loop written out."""

    def loop(self, env, learner):
        for _ in env.steps(self.horizon):
            action, extra = self.explore(learner.params, env.obs)
            env.step(action, extra)
        learner.step(self.loss, self.advantages(env.rollout))


@dataclass(frozen=True)
class QLearning(Algorithm):
    """Off-policy: replay with priorities, a target network synchronised every few updates, warm-up."""

    horizon: int = 4
    batch: int = 16
    capacity: int = 64
    warm_up: int = 24
    sync: int = 3

    def init(self, key):
        width = int(np.prod(self.spec.observation.shape))
        return {"w": 0.1 * jax.random.normal(key, (width, int(self.spec.action.n)))}

    def optimiser(self):
        return optax.sgd(0.01)

    def state(self, params):
        return {"target": shared(params), "moves": per_env(jnp.int32(0))}

    @act
    def explore(self, params, obs, key):
        values = obs @ params["w"]
        greedy = values.argmax(-1)
        random = jax.vmap(lambda k: jax.random.randint(k, (), 0, values.shape[-1]))(key)
        chance = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, 1)))(key)
        return jnp.where(chance < 0.2, random, greedy).astype(jnp.int32)

    @act
    def count(self, moves, action):
        return moves + jnp.ones_like(action)

    def errors(self, params, target, data):
        values = jnp.take_along_axis(data.obs @ params["w"], data.action[..., None], -1)[..., 0]
        future = (data.next_obs @ target["w"]).max(-1)
        return data.reward + 0.9 * jnp.where(data.terminated, 0.0, future) - values

    def loss(self, params, target, sample):
        return (sample.weight * self.errors(params, target, sample.data) ** 2).mean()

    @learn
    def priorities(self, params, target, sample):
        return jnp.abs(self.errors(params, target, sample.data)) + 1e-3

    def loop(self, env, learner, state, replay):
        for _ in env.steps(self.horizon):
            action = self.explore(learner.params, env.obs)
            state.moves = self.count(state.moves, action)
            env.step(action)
        replay.add(env.rollout, capacity=self.capacity, prioritised=True)
        for sample in replay.sample(self.batch, times=2, beta=0.5):
            learner.step(self.loss, state.target, sample, when=replay.ready(self.warm_up))
            replay.reprioritise(sample, self.priorities(learner.params, state.target, sample))
            state.target = learner.every(self.sync, learner.params, state.target)
