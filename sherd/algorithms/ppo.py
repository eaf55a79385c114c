"""Proximal Policy Optimisation (Schulman et al., 2017), for every space and network that Sherd knows.

`docs/algorithms/ppo.md` explains each detail and where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sherd.author import Algorithm, Transition, act, learn, per_env, shared
from sherd.author.reduce import standardise
from sherd.nn.actor_critic import ActorCritic, actor_critic
from sherd.nn.distributions import clip_action
from sherd.nn.returns import gae
from sherd.nn.statistics import initial_moments, normalise, scale_rewards, update_moments
from sherd.spaces import zeros


class Choice(NamedTuple):
    """What learning needs to know of an action: itself before clipping, its log-probability, the value."""

    action: Any
    log_prob: Any
    value: Any


class Scales(NamedTuple):
    """Running statistics of observations and of discounted returns; empty where not normalised."""

    obs: Any
    returns: Any


class Batch(NamedTuple):
    """What the loss is computed from, leaves [time, env, ...]."""

    obs: Any
    first: Any
    choice: Choice
    advantage: Any
    target: Any
    memory: Any


@dataclass(frozen=True)
class PPO(Algorithm):
    """Proximal Policy Optimisation."""

    horizon: int = 128
    """Steps that each environment makes per iteration."""
    epochs: int = 4
    """Passes over the rollout per iteration."""
    minibatches: int = 4
    """Parts into which each pass deals the rollout."""
    learning_rate: float = 1e-3
    """Step size of Adam, at the beginning."""
    anneal: bool = True
    """Let the learning rate fall linearly to zero over the run."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    gae_lambda: float = 0.95
    """Trade of bias against variance in generalised advantage estimation."""
    clip: float = 0.2
    """How far the probability ratio may move before its gradient is cut."""
    value_clip: float | None = None
    """How far a value may move from the old one before its gradient is cut; none: not clipped."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    target_kl: float | None = None
    """End an iteration's updates once the policy has moved 1.5 times this far; none: never."""
    normalise_advantages: bool = True
    """Shift and scale the advantages of each minibatch to mean 0, deviation 1."""
    normalise_observations: bool = False
    """Shift and scale observations by their running statistics."""
    normalise_rewards: bool = True
    """Divide rewards by the running deviation of the discounted return, so that one value cost suits all."""
    network: Any = "auto"
    """auto, mlp, cnn, gru, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of an MLP."""
    memory_units: int = 128
    """Width of a GRU's memory."""
    share_torso: bool | None = None
    """One torso for policy and value; none: separate for an MLP, one for everything else."""

    @property
    def model(self) -> ActorCritic:
        return actor_critic(self.spec, self.network, self.hidden, self.memory_units, self.share_torso)

    def init(self, key: Any) -> Any:
        return self.model.init(key)

    def optimiser(self) -> Any:
        clipping = optax.clip_by_global_norm(self.max_grad_norm)
        return optax.chain(clipping, optax.adam(self.learning_rate, eps=1e-5))

    def state(self, params: Any) -> dict[str, Any]:
        obs = initial_moments(zeros(self.spec.observation)) if self.normalise_observations else ()
        returns = initial_moments(jnp.zeros(())) if self.normalise_rewards else ()
        memory = jax.tree.map(lambda leaf: leaf[0], self.model.initial_memory(1))
        return {
            "memory": per_env(memory),
            "scales": shared(Scales(obs, returns)),
            "discounted": per_env(jnp.zeros(()) if self.normalise_rewards else ()),
        }

    @act
    def explore(self, params: Any, scales: Scales, obs: Any, first: Any, memory: Any, key: Any) -> Any:
        policy, value, memory = self.model.step(params, self.scaled(scales, obs), memory, first)
        action = policy.sample(key)
        choice = Choice(action, policy.log_prob(action), value)
        return clip_action(self.spec.action, action), choice, memory

    @act
    def exploit(self, params: Any, scales: Scales, obs: Any, first: Any, memory: Any) -> Any:
        policy, _, memory = self.model.step(params, self.scaled(scales, obs), memory, first)
        return clip_action(self.spec.action, policy.mode()), memory

    @learn
    def prepare(self, params: Any, scales: Scales, discounted: Any, rollout: Transition, memory: Any) -> Any:
        ended = rollout.terminated | rollout.truncated
        reward, returns = rollout.reward, scales.returns
        if self.normalise_rewards:
            discounted, returns, reward = scale_rewards(returns, discounted, reward, ended, self.discount)
        choice: Choice = rollout.extra
        successor = self.successor_values(params, scales, rollout, memory)
        advantage = gae(
            reward, choice.value, successor, rollout.terminated, ended, self.discount, self.gae_lambda
        )
        batch = Batch(
            obs=self.scaled(scales, rollout.obs),
            first=rollout.first,
            choice=choice,
            advantage=advantage,
            target=advantage + choice.value,
            memory=jax.tree.map(lambda leaf: leaf[None], memory),
        )
        # Statistics change only now, so that learning sees what acting saw.
        obs = update_moments(scales.obs, rollout.obs) if self.normalise_observations else ()
        return batch, Scales(obs, returns), discounted

    def successor_values(self, params: Any, scales: Scales, rollout: Transition, memory: Any) -> Any:
        """The value of where each step led: the next step's, except where an episode was truncated."""
        choice: Choice = rollout.extra
        memories: Any = ()
        if self.model.recurrent:
            obs = self.scaled(scales, rollout.obs)
            memories = self.model.unroll(params, obs, memory, rollout.first)[2]
        last_obs, last_memory = jax.tree.map(lambda leaf: leaf[-1], (rollout.next_obs, memories))
        last = self.model.value(params, self.scaled(scales, last_obs), last_memory)
        following = jnp.concatenate([choice.value[1:], last[None]])
        cut = rollout.truncated & ~rollout.terminated

        def bootstrapped() -> Any:
            reached = self.model.value(params, self.scaled(scales, rollout.next_obs), memories)
            return jnp.where(cut, reached, following)

        return jax.lax.cond(cut[:-1].any(), bootstrapped, lambda: following)

    def loss(self, params: Any, batch: Batch) -> Any:
        memory = jax.tree.map(lambda leaf: leaf[0], batch.memory)
        policy, value, _ = self.model.unroll(params, batch.obs, memory, batch.first)
        log_ratio = policy.log_prob(batch.choice.action) - batch.choice.log_prob
        ratio = jnp.exp(log_ratio)
        advantage = standardise(batch.advantage) if self.normalise_advantages else batch.advantage
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * self.value_errors(value, batch).mean()
        entropy = policy.entropy().mean()
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (jnp.abs(ratio - 1) > self.clip).mean(),
        }
        return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, metrics

    def value_errors(self, value: Any, batch: Batch) -> Any:
        errors = jnp.square(value - batch.target)
        if self.value_clip is None:
            return errors
        moved = jnp.clip(value - batch.choice.value, -self.value_clip, self.value_clip)
        return jnp.maximum(errors, jnp.square(batch.choice.value + moved - batch.target))

    def too_far(self, metrics: Any) -> Any:
        return metrics["approx_kl"] > (jnp.inf if self.target_kl is None else 1.5 * self.target_kl)

    @learn
    def rate(self, progress: Any) -> Any:
        return 1 - progress if self.anneal else jnp.ones_like(progress)

    def scaled(self, scales: Scales, obs: Any) -> Any:
        return normalise(scales.obs, obs) if self.normalise_observations else obs

    def loop(self, env: Any, learner: Any, state: Any) -> None:
        memory = state.memory
        for _ in env.steps(self.horizon):
            action, choice, state.memory = self.explore(
                learner.params, state.scales, env.obs, env.first, state.memory
            )
            env.step(action, choice)
        batch, state.scales, state.discounted = self.prepare(
            learner.params, state.scales, state.discounted, env.rollout, memory
        )
        rate = self.rate(learner.progress)
        for minibatch in learner.shuffled(batch, self.epochs, self.minibatches, self.model.recurrent):
            learner.step(self.loss, minibatch, scale=rate, stop_when=self.too_far)

    def play(self, env: Any, learner: Any, state: Any) -> None:
        action, state.memory = self.exploit(learner.params, state.scales, env.obs, env.first, state.memory)
        env.step(action)
