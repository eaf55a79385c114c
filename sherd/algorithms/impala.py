"""IMPALA (Espeholt et al., 2018): an actor-critic that corrects for having acted with older parameters.

`docs/algorithms/impala.md` explains each detail and where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sherd.author import Algorithm, Transition, act, learn, per_env
from sherd.nn.actor_critic import ActorCritic, actor_critic
from sherd.nn.distributions import clip_action
from sherd.nn.returns import VTrace, vtrace
from sherd.nn.successors import successor_values


class Choice(NamedTuple):
    """What learning needs to know of an action: itself before clipping, and its log-probability."""

    action: Any
    log_prob: Any


@dataclass(frozen=True)
class IMPALA(Algorithm):
    """Actor-critic with V-trace, which bears actors that lag behind the learner."""

    horizon: int = 16
    """Steps that each environment makes per iteration."""
    learning_rate: float = 2e-3
    """Step size of Adam, at the beginning."""
    anneal: bool = True
    """Let the learning rate fall linearly to zero over the run."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    trace_lambda: float = 1.0
    """Decay of V-trace's traces, besides the discount."""
    clip_rho: float = 1.0
    """The largest importance weight of an error: which policy's value is learnt."""
    clip_c: float = 1.0
    """The largest importance weight on the way back through time: how fast it is learnt."""
    clip_policy_rho: float = 1.0
    """The largest importance weight of the policy's gradient."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""
    network: Any = "auto"
    """auto, mlp, cnn, gru, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of an MLP."""
    memory_units: int = 128
    """Width of a GRU's memory."""
    share_torso: bool = False
    """One torso for policy and value: less to compute, but large values then drown the policy's gradient."""

    @property
    def model(self) -> ActorCritic:
        return actor_critic(self.spec, self.network, self.hidden, self.memory_units, self.share_torso)

    def init(self, key: Any) -> Any:
        return self.model.init(key)

    def optimiser(self) -> Any:
        clipping = optax.clip_by_global_norm(self.max_grad_norm)
        return optax.chain(clipping, optax.adam(self.learning_rate, eps=1e-5))

    def state(self, params: Any) -> dict[str, Any]:
        return {"memory": per_env(jax.tree.map(lambda leaf: leaf[0], self.model.initial_memory(1)))}

    @act
    def explore(self, params: Any, obs: Any, first: Any, memory: Any, key: Any) -> Any:
        policy, _, memory = self.model.step(params, obs, memory, first)
        action = policy.sample(key)
        return clip_action(self.spec.action, action), Choice(action, policy.log_prob(action)), memory

    @act
    def exploit(self, params: Any, obs: Any, first: Any, memory: Any) -> Any:
        policy, _, memory = self.model.step(params, obs, memory, first)
        return clip_action(self.spec.action, policy.mode()), memory

    def loss(self, params: Any, rollout: Transition, memory: Any) -> Any:
        choice: Choice = rollout.extra
        policy, value, memories = self.model.unroll(params, rollout.obs, memory, rollout.first)
        log_prob = policy.log_prob(choice.action)
        log_ratio = jax.lax.stop_gradient(log_prob - choice.log_prob)
        target, advantage = self.corrected(params, rollout, log_ratio, value, memories)
        policy_loss = -(log_prob * advantage).mean()
        value_loss = 0.5 * jnp.square(value - target).mean()
        entropy = policy.entropy().mean()
        ratio = jnp.exp(log_ratio)
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (ratio > self.clip_rho).mean(),
        }
        return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, metrics

    def corrected(
        self, params: Any, rollout: Transition, log_ratio: Any, value: Any, memories: Any
    ) -> VTrace:
        """V-trace's targets and advantages, from values under the present parameters; without a gradient."""
        params, value, memories = jax.lax.stop_gradient((params, value, memories))
        return vtrace(
            log_ratio,
            rollout.reward,
            value,
            successor_values(partial(self.model.value, params), rollout, value, memories),
            rollout.terminated,
            rollout.terminated | rollout.truncated,
            self.discount,
            self.trace_lambda,
            self.clip_rho,
            self.clip_c,
            self.clip_policy_rho,
        )

    @learn
    def rate(self, progress: Any) -> Any:
        return 1 - progress if self.anneal else jnp.ones_like(progress)

    def loop(self, env: Any, learner: Any, state: Any) -> None:
        memory = state.memory
        for _ in env.steps(self.horizon):
            action, choice, state.memory = self.explore(learner.params, env.obs, env.first, state.memory)
            env.step(action, choice)
        learner.step(self.loss, env.rollout, memory, scale=self.rate(learner.progress))

    def play(self, env: Any, learner: Any, state: Any) -> None:
        action, state.memory = self.exploit(learner.params, env.obs, env.first, state.memory)
        env.step(action)
