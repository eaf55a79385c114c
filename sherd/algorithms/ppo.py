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
from sherd.errors import UsageError
from sherd.nn import popart
from sherd.nn.actor_critic import ActorCritic, actor_critic
from sherd.nn.distributions import clip_action
from sherd.nn.returns import gae, vtrace
from sherd.nn.statistics import initial_moments, normalise, scale_rewards, update_moments
from sherd.nn.successors import successor_values
from sherd.spaces import zeros

# How fast the scale of values follows the targets, per iteration.
_POPART_STEP = 0.03


class Choice(NamedTuple):
    """What learning needs to know of an action: itself before clipping, its log-probability, the value."""

    action: Any
    log_prob: Any
    value: Any


class Values(NamedTuple):
    """PopArt: the scale of values, and what rescaling has added to the parameters of the value head."""

    scale: Any
    added: Any


class Scales(NamedTuple):
    """Running statistics of observations, discounted returns and values; empty where not normalised."""

    obs: Any
    returns: Any
    values: Any


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
    dual_clip: float | None = None
    """Bound, in advantages, on what a harmful action that became likelier costs; above 1; None: no bound."""
    vtrace: bool = False
    """Correct advantages and targets for having acted with older parameters: for asynchronous policies."""
    value_clip: float | None = None
    """How far a value may move from the old one before its gradient is cut; None: not clipped."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this norm."""
    target_kl: float | None = None
    """End an iteration's updates once the policy has moved 1.5 times this far; None: never."""
    normalise_advantages: bool = True
    """Shift and scale the advantages of each minibatch to mean 0, deviation 1."""
    normalise_observations: bool = False
    """Shift and scale observations by their running statistics."""
    normalise_rewards: bool = True
    """Divide rewards by the running deviation of the discounted return, so that one value cost suits all."""
    popart: bool = False
    """Learn values on a scale of their own that follows the targets, instead of scaling rewards."""
    network: Any = "auto"
    """auto, mlp, cnn, gru, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of an MLP."""
    memory_units: int = 128
    """Width of a GRU's memory."""
    share_torso: bool | None = None
    """One torso for policy and value; None: separate for an MLP, one for everything else."""

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise UsageError(f"dual_clip is {self.dual_clip}, but must be above 1\n  fix: 3 is usual")

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
        values = Values(popart.initial_scale(), jax.tree.map(jnp.zeros_like, params["value"]))
        memory = jax.tree.map(lambda leaf: leaf[0], self.model.initial_memory(1))
        return {
            "memory": per_env(memory),
            "scales": shared(Scales(obs, returns, values if self.popart else ())),
            "discounted": per_env(jnp.zeros(()) if self.normalise_rewards else ()),
        }

    @act
    def explore(self, params: Any, scales: Scales, obs: Any, first: Any, memory: Any, key: Any) -> Any:
        params = self.rescaled(params, scales.values)
        policy, value, memory = self.model.step(params, self.scaled(scales, obs), memory, first)
        action = policy.sample(key)
        choice = Choice(action, policy.log_prob(action), self.denormalised(scales.values, value))
        return clip_action(self.spec.action, action), choice, memory

    @act
    def exploit(self, params: Any, scales: Scales, obs: Any, first: Any, memory: Any) -> Any:
        policy, _, memory = self.model.step(params, self.scaled(scales, obs), memory, first)
        return clip_action(self.spec.action, policy.mode()), memory

    @learn
    def prepare(self, params: Any, scales: Scales, discounted: Any, rollout: Transition, memory: Any) -> Any:
        ended, seen = rollout.terminated | rollout.truncated, rollout.obs
        reward, returns = rollout.reward, scales.returns
        if self.normalise_rewards:
            discounted, returns, reward = scale_rewards(returns, discounted, reward, ended, self.discount)
        obs, next_obs = self.scaled(scales, rollout.obs), self.scaled(scales, rollout.next_obs)
        rollout = rollout._replace(obs=obs, next_obs=next_obs, reward=reward)
        choice, advantage, target = self.judge(params, scales.values, rollout, memory)
        values = self.adapted(params, scales.values, target)
        batch = Batch(
            obs=obs,
            first=rollout.first,
            choice=choice._replace(value=self.normalised(values, choice.value)),
            advantage=advantage,
            target=self.normalised(values, target),
            memory=jax.tree.map(lambda leaf: leaf[None], memory),
        )
        # Statistics change only now, so that learning sees what acting saw.
        moments = update_moments(scales.obs, seen) if self.normalise_observations else ()
        return batch, Scales(moments, returns, values), discounted

    def judge(self, params: Any, values: Any, rollout: Transition, memory: Any) -> Any:
        """Advantages and targets, and the choice from which moves of policy and value are measured."""
        params, choice, memories = self.rescaled(params, values), rollout.extra, ()
        if self.vtrace or self.model.recurrent:
            policy, value, memories = self.model.unroll(params, rollout.obs, memory, rollout.first)
        if self.vtrace:
            fresh = Choice(choice.action, policy.log_prob(choice.action), self.denormalised(values, value))
            choice, log_ratio = fresh, fresh.log_prob - choice.log_prob

        def value_of(obs: Any, memory: Any) -> Any:
            return self.denormalised(values, self.model.value(params, obs, memory))

        following = successor_values(value_of, rollout, choice.value, memories)
        ended = rollout.terminated | rollout.truncated
        steps = (rollout.reward, choice.value, following, rollout.terminated, ended)
        if self.vtrace:
            target, advantage = vtrace(log_ratio, *steps, self.discount, self.gae_lambda)
            return choice, advantage, target
        advantage = gae(*steps, self.discount, self.gae_lambda)
        return choice, advantage, advantage + choice.value

    def loss(self, params: Any, batch: Batch, values: Any) -> Any:
        memory = jax.tree.map(lambda leaf: leaf[0], batch.memory)
        params = self.rescaled(params, values)
        policy, value, _ = self.model.unroll(params, batch.obs, memory, batch.first)
        log_ratio = policy.log_prob(batch.choice.action) - batch.choice.log_prob
        ratio = jnp.exp(log_ratio)
        advantage = standardise(batch.advantage) if self.normalise_advantages else batch.advantage
        policy_loss = -self.gains(ratio, advantage).mean()
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

    def gains(self, ratio: Any, advantage: Any) -> Any:
        clipped = jnp.clip(ratio, 1 - self.clip, 1 + self.clip)
        gains = jnp.minimum(ratio * advantage, clipped * advantage)
        if self.dual_clip is None:
            return gains
        return jnp.where(advantage < 0, jnp.maximum(gains, self.dual_clip * advantage), gains)

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

    def rescaled(self, params: Any, values: Any) -> Any:
        """The parameters with PopArt's value head: what the optimiser has made of it, and rescaling added."""
        if not self.popart:
            return params
        return {**params, "value": jax.tree.map(jnp.add, params["value"], values.added)}

    def adapted(self, params: Any, values: Any, target: Any) -> Any:
        """The scale after seeing the targets, and a head that says under it what it said before."""
        if not self.popart:
            return ()
        scale = popart.update_scale(values.scale, target, _POPART_STEP)
        head = popart.rescale_head(self.rescaled(params, values)["value"], values.scale, scale)
        return Values(scale, jax.tree.map(jnp.subtract, head, params["value"]))

    def normalised(self, values: Any, value: Any) -> Any:
        return popart.normalise(values.scale, value) if self.popart else value

    def denormalised(self, values: Any, value: Any) -> Any:
        return popart.denormalise(values.scale, value) if self.popart else value

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
            learner.step(self.loss, minibatch, state.scales.values, scale=rate, stop_when=self.too_far)

    def play(self, env: Any, learner: Any, state: Any) -> None:
        action, state.memory = self.exploit(learner.params, state.scales, env.obs, env.first, state.memory)
        env.step(action)
