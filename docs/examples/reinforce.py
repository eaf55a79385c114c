"""REINFORCE with a learnt baseline: a whole algorithm in one sitting.

sherd train reinforce:Reinforce CartPole-v1 --steps 300000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import sherd
from sherd import Algorithm, Transition, act, learn
from sherd.nn.returns import discounted_returns


class Batch(NamedTuple):
    """What the loss needs, leaves [time, env, ...]."""

    obs: Any
    action: Any
    returns: Any


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """Policy gradient with a value baseline, one update per rollout."""

    horizon: int = 32
    """Steps that each environment makes per iteration."""
    hidden: int = 64
    """Width of the one hidden layer."""
    learning_rate: float = 3e-3
    """Step size of Adam."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    value_cost: float = 0.5
    """Weight of the baseline's loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""

    def init(self, key: Any) -> Any:
        inputs, actions = self.spec.observation.shape[0], int(self.spec.action.n)
        orthogonal = jax.nn.initializers.orthogonal
        torso, policy, value = jax.random.split(key, 3)
        return {
            "torso": orthogonal(2**0.5)(torso, (inputs, self.hidden)),
            "policy": orthogonal(0.01)(policy, (self.hidden, actions)),
            "value": orthogonal(1.0)(value, (self.hidden, 1)),
        }

    def optimiser(self) -> Any:
        return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(self.learning_rate))

    def network(self, params: Any, obs: Any) -> tuple[Any, Any]:
        features = jnp.tanh(obs @ params["torso"])
        return features @ params["policy"], (features @ params["value"])[..., 0]

    @act
    def explore(self, params: Any, obs: Any, key: Any) -> Any:
        logits, _ = self.network(params, obs)
        action = jax.vmap(jax.random.categorical)(key, logits)
        return action.astype(jnp.int32), ()

    @act
    def exploit(self, params: Any, obs: Any) -> Any:
        logits, _ = self.network(params, obs)
        return logits.argmax(-1).astype(jnp.int32)

    @learn
    def prepare(self, params: Any, rollout: Transition) -> Batch:
        ended = rollout.terminated | rollout.truncated
        _, next_value = self.network(params, rollout.next_obs)
        returns = discounted_returns(rollout.reward, next_value, rollout.terminated, ended, self.discount)
        return Batch(rollout.obs, rollout.action, returns)

    def loss(self, params: Any, batch: Batch) -> Any:
        logits, value = self.network(params, batch.obs)
        log_probs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_probs, batch.action[..., None], -1)[..., 0]
        advantage = sherd.standardise(jax.lax.stop_gradient(batch.returns - value))
        policy_loss = -(chosen * advantage).mean()
        value_loss = jnp.square(value - batch.returns).mean()
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, metrics

    def loop(self, env: Any, learner: Any) -> None:
        rollout = env.unroll(self.explore, learner.params, self.horizon)
        batch = self.prepare(learner.params, rollout)
        learner.step(self.loss, batch)

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params, env.obs))
