"""REINFORCE (Williams, 1992): make what was followed by a high return more likely.

`docs/algorithms/reinforce.md` explains each detail and where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sherd.author import Algorithm, Transition, act, learn, per_env
from sherd.author.reduce import standardise
from sherd.errors import UsageError
from sherd.nn.actor_critic import ActorCritic, actor_critic
from sherd.nn.distributions import clip_action
from sherd.nn.returns import gae, n_step_returns
from sherd.nn.successors import successor_values


@dataclass(frozen=True)
class REINFORCE(Algorithm):
    """Monte-Carlo policy gradient, with or without a baseline."""

    horizon: int = 128
    """Steps that each environment makes per iteration; what follows them is estimated by the value."""
    learning_rate: float = 3e-3
    """Step size of Adam, at the beginning."""
    anneal: bool = True
    """Let the learning rate fall linearly to zero over the run."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    baseline: bool = True
    """Subtract the learnt value from returns before the policy learns from them."""
    n_step: int | None = None
    """Rewards that a return adds up before a value stands for the rest; None: to the rollout's end."""
    gae_lambda: float | None = None
    """Generalised advantage estimation with this trade of bias against variance, instead of n steps."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this norm."""
    normalise_advantages: bool = True
    """Shift and scale what the policy learns from, in each rollout, to mean 0, deviation 1."""
    network: Any = "auto"
    """auto, mlp, cnn, gru, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of an MLP."""
    memory_units: int = 128
    """Width of a GRU's memory."""
    share_torso: bool = False
    """One torso for policy and value: less to compute, but large values then drown the policy's gradient."""

    def __post_init__(self) -> None:
        if self.n_step is not None and self.gae_lambda is not None:
            raise UsageError("n_step and gae_lambda are both set\n  fix: set one of them to none")

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
        chosen = policy.sample(key)
        return clip_action(self.spec.action, chosen), chosen, memory

    @act
    def exploit(self, params: Any, obs: Any, first: Any, memory: Any) -> Any:
        policy, _, memory = self.model.step(params, obs, memory, first)
        return clip_action(self.spec.action, policy.mode()), memory

    def loss(self, params: Any, rollout: Transition, memory: Any) -> Any:
        policy, value, memories = self.model.unroll(params, rollout.obs, memory, rollout.first)
        returns = self.returns(params, rollout, value, memories)
        weight = jax.lax.stop_gradient(returns - value) if self.baseline else returns
        if self.normalise_advantages:
            weight = standardise(weight)
        chosen = rollout.extra
        policy_loss = -(policy.log_prob(chosen) * weight).mean()
        value_loss = 0.5 * jnp.square(value - returns).mean()
        entropy = policy.entropy().mean()
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        return policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy, metrics

    def returns(self, params: Any, rollout: Transition, value: Any, memories: Any) -> Any:
        """Sums of rewards, completed by a value where the data stop before the episode; no gradient."""
        params, value, memories = jax.lax.stop_gradient((params, value, memories))
        following = successor_values(partial(self.model.value, params), rollout, value, memories)
        terminated, ended = rollout.terminated, rollout.terminated | rollout.truncated
        steps, lam = self.horizon if self.n_step is None else self.n_step, self.gae_lambda
        if lam is None:
            return n_step_returns(rollout.reward, following, terminated, ended, self.discount, steps)
        return value + gae(rollout.reward, value, following, terminated, ended, self.discount, lam)

    @learn
    def rate(self, progress: Any) -> Any:
        return 1 - progress if self.anneal else jnp.ones_like(progress)

    def loop(self, env: Any, learner: Any, state: Any) -> None:
        memory = state.memory
        for _ in env.steps(self.horizon):
            action, chosen, state.memory = self.explore(learner.params, env.obs, env.first, state.memory)
            env.step(action, chosen)
        learner.step(self.loss, env.rollout, memory, scale=self.rate(learner.progress))

    def play(self, env: Any, learner: Any, state: Any) -> None:
        action, state.memory = self.exploit(learner.params, env.obs, env.first, state.memory)
        env.step(action)
