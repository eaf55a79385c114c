"""A small actor-critic: two networks, two optimisers, one rollout for both.

sherd train actor_critic:ActorCritic CartPole-v1 --steps 300000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import sherd
from sherd import Algorithm, Transition, act, learn
from sherd.nn.returns import gae


class Batch(NamedTuple):
    """What the losses need, leaves [time, env, ...]."""

    obs: Any
    action: Any
    advantage: Any
    target: Any


def layers(key: Any, *widths: int) -> Any:
    """Two dense layers."""
    first, last = jax.random.split(key)
    orthogonal = jax.nn.initializers.orthogonal()
    return {"in": orthogonal(first, widths[:2]), "out": 0.01 * orthogonal(last, widths[1:])}


def network(params: Any, obs: Any) -> Any:
    """A hidden layer and a linear one."""
    return jnp.tanh(obs @ params["in"]) @ params["out"]


@dataclass(frozen=True)
class ActorCritic(Algorithm):
    """Advantage actor-critic for discrete actions."""

    horizon: int = 16
    """Steps that each environment makes per iteration."""
    hidden: int = 64
    """Width of the one hidden layer of either network."""
    actor_rate: float = 3e-3
    """Step size of the actor's Adam."""
    critic_rate: float = 1e-2
    """Step size of the critic's Adam."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    gae_lambda: float = 0.95
    """Trade of bias against variance in the advantage."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""

    def init(self, key: Any) -> Any:
        inputs, actions = self.spec.observation.shape[0], int(self.spec.action.n)
        actor, critic = jax.random.split(key)
        return {
            "actor": layers(actor, inputs, self.hidden, actions),
            "critic": layers(critic, inputs, self.hidden, 1),
        }

    def optimiser(self) -> Any:
        return {"actor": optax.adam(self.actor_rate), "critic": optax.adam(self.critic_rate)}

    @act
    def explore(self, actor: Any, obs: Any, key: Any) -> Any:
        return jax.vmap(jax.random.categorical)(key, network(actor, obs)).astype(jnp.int32), ()

    @act
    def exploit(self, actor: Any, obs: Any) -> Any:
        return network(actor, obs).argmax(-1).astype(jnp.int32)

    @learn
    def judge(self, critic: Any, rollout: Transition) -> Batch:
        value, next_value = (network(critic, obs)[..., 0] for obs in (rollout.obs, rollout.next_obs))
        ended = rollout.terminated | rollout.truncated
        steps = (rollout.reward, value, next_value, rollout.terminated, ended)
        advantage = gae(*steps, self.discount, self.gae_lambda)
        return Batch(rollout.obs, rollout.action, sherd.standardise(advantage), advantage + value)

    def critic_loss(self, params: Any, batch: Batch) -> Any:
        return jnp.square(network(params["critic"], batch.obs)[..., 0] - batch.target).mean()

    def actor_loss(self, params: Any, batch: Batch) -> Any:
        log_probs = jax.nn.log_softmax(network(params["actor"], batch.obs))
        chosen = jnp.take_along_axis(log_probs, batch.action[..., None], -1)[..., 0]
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        gain = (chosen * batch.advantage).mean() + self.entropy_cost * entropy
        return -gain, {"entropy": entropy}

    def loop(self, env: Any, learner: Any) -> None:
        rollout = env.unroll(self.explore, learner.params["actor"], self.horizon)
        batch = self.judge(learner.params["critic"], rollout)
        learner.step(self.critic_loss, batch, part="critic")
        learner.step(self.actor_loss, batch, part="actor")

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params["actor"], env.obs))
