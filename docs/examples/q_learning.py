"""Double deep Q-learning: replay of windows, a target network, a schedule of exploration and a warm-up.

sherd train q_learning:QLearning CartPole-v1 --steps 100000
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sherd import Algorithm, act, learn, shared
from sherd.nn.returns import discounted_returns


def of_action(values: Any, action: Any) -> Any:
    """Of values [..., actions], those of one action each."""
    return jnp.take_along_axis(values, action[..., None], -1)[..., 0]


@dataclass(frozen=True)
class QLearning(Algorithm):
    """Double deep Q-learning (van Hasselt et al., 2016) with n-step returns, for discrete actions."""

    horizon: int = 4
    """Steps that each environment makes per iteration."""
    batch: int = 128
    """Windows drawn for an update; a multiple of the number of environments."""
    n_step: int = 5
    """Steps in a window, two or more: rewards that are added up before a value stands for the rest."""
    updates: int = 8
    """Updates per iteration."""
    capacity: int = 100_000
    """Steps that replay remembers; a multiple of the number of environments."""
    warm_up: int = 1_000
    """Steps to remember before the first update."""
    sync: int = 200
    """Updates after which the target network is replaced."""
    hidden: int = 128
    """Width of the two hidden layers."""
    learning_rate: float = 1e-3
    """Step size of Adam, at the beginning; it falls linearly to zero."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    explore_until: float = 0.2
    """The share of the run over which random actions fall from all to one in twenty."""

    def init(self, key: Any) -> Any:
        sizes = (self.spec.observation.shape[0], self.hidden, self.hidden, int(self.spec.action.n))
        shapes = list(pairwise(sizes))
        keys = jax.random.split(key, len(shapes))
        make = jax.nn.initializers.he_normal()
        return [{"w": make(k, shape), "b": jnp.zeros(shape[1])} for k, shape in zip(keys, shapes)]

    def optimiser(self) -> Any:
        return optax.adam(self.learning_rate)

    def state(self, params: Any) -> dict[str, Any]:
        return {"target": shared(params)}

    def values(self, params: Any, obs: Any) -> Any:
        for layer in params[:-1]:
            obs = jax.nn.relu(obs @ layer["w"] + layer["b"])
        return obs @ params[-1]["w"] + params[-1]["b"]

    @learn
    def randomness(self, progress: Any) -> Any:
        return jnp.maximum(0.05, 1 - progress / self.explore_until)

    @learn
    def rate(self, progress: Any) -> Any:
        return 1 - progress

    @act
    def explore(self, params: Any, epsilon: Any, obs: Any, key: Any) -> Any:
        values = self.values(params, obs)

        def choose(key: Any, greedy: Any) -> Any:
            pick, toss = jax.random.split(key)
            random = jax.random.randint(pick, (), 0, values.shape[-1])
            return jnp.where(jax.random.uniform(toss) < epsilon, random, greedy)

        return jax.vmap(choose)(key, values.argmax(-1).astype(jnp.int32))

    @act
    def exploit(self, params: Any, obs: Any) -> Any:
        return self.values(params, obs).argmax(-1).astype(jnp.int32)

    def loss(self, params: Any, target: Any, sample: Any) -> Any:
        window = sample.data  # leaves [n_step, draw, env, ...]
        chosen = of_action(self.values(params, window.obs[0]), window.action[0])
        best = self.values(params, window.next_obs).argmax(-1)
        future = of_action(self.values(target, window.next_obs), best)
        ended = window.terminated | window.truncated
        returns = discounted_returns(window.reward, future, window.terminated, ended, self.discount)
        return optax.huber_loss(chosen, returns[0]).mean(), {"q": chosen.mean()}

    def loop(self, env: Any, learner: Any, state: Any, replay: Any) -> None:
        epsilon, rate = self.randomness(learner.progress), self.rate(learner.progress)
        for _ in env.steps(self.horizon):
            env.step(self.explore(learner.params, epsilon, env.obs))
        replay.add(env.rollout, capacity=self.capacity, length=self.n_step)
        ready = replay.ready(self.warm_up)
        for sample in replay.sample(self.batch, times=self.updates):
            learner.step(self.loss, state.target, sample, when=ready, scale=rate)
            state.target = learner.every(self.sync, learner.params, state.target)

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params, env.obs))
