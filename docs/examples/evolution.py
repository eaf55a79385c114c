"""Evolution strategies: every environment plays a neighbour of the parameters, and the better ones pull.

sherd train evolution:Evolution CartPole-v1 --envs 64 --steps 500000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import sherd
from sherd import Algorithm, Transition, act, learn
from sherd.nn.returns import discounted_returns


@dataclass(frozen=True)
class Evolution(Algorithm):
    """Evolution strategies (Salimans et al., 2017) with a linear policy for discrete actions."""

    horizon: int = 100
    """Steps for which an environment plays one neighbour."""
    spread: float = 0.5
    """Standard deviation of the neighbours around the parameters."""
    learning_rate: float = 0.1
    """Step size of Adam."""
    discount: float = 0.97
    """How much a reward one step later is worth."""

    def init(self, key: Any) -> Any:
        del key  # the search begins in the middle of nowhere
        return jnp.zeros((self.spec.observation.shape[0], int(self.spec.action.n)))

    def optimiser(self) -> Any:
        return optax.adam(self.learning_rate)

    @act
    def mutate(self, params: Any, key: Any) -> Any:
        noise = jax.vmap(lambda one: jax.random.normal(one, params.shape))(key)
        return params + self.spread * noise

    @act
    def choose(self, neighbours: Any, obs: Any) -> Any:
        return (obs[:, :, None] * neighbours).sum(1).argmax(-1).astype(jnp.int32)

    @act
    def exploit(self, params: Any, obs: Any) -> Any:
        return (obs[:, :, None] * params).sum(1).argmax(-1).astype(jnp.int32)

    @learn
    def judge(self, rollout: Transition) -> Any:
        ended = rollout.terminated | rollout.truncated
        nothing = jnp.zeros_like(rollout.reward)
        returns = discounted_returns(rollout.reward, nothing, rollout.terminated, ended, self.discount)
        return returns.mean(0)

    def loss(self, params: Any, neighbours: Any, fitness: Any) -> Any:
        distance = (neighbours - params) / self.spread
        log_prob = -0.5 * jnp.square(distance).sum((1, 2))
        return -(sherd.standardise(fitness) * log_prob).mean(), {"fitness": fitness.mean()}

    def loop(self, env: Any, learner: Any) -> None:
        neighbours = self.mutate(learner.params)
        for _ in env.steps(self.horizon):
            env.step(self.choose(neighbours, env.obs))
        learner.step(self.loss, neighbours, self.judge(env.rollout))

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params, env.obs))
