"""Deep Deterministic Policy Gradient (Lillicrap et al., 2016): Q-learning for continuous actions.

`docs/algorithms/ddpg.md` explains each detail and where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sherd.author import Algorithm, Transition, act, learn, shared
from sherd.nn.continuous import Actor, Critics, actor, critics, row_noise
from sherd.nn.noise import random_actions
from sherd.nn.squash import perturb
from sherd.nn.targets import polyak


@dataclass(frozen=True)
class DDPG(Algorithm):
    """Deep Deterministic Policy Gradient, for Box actions with finite bounds."""

    horizon: int = 4
    """Steps that each environment makes per iteration."""
    updates: int = 32
    """Updates per iteration: with 8 environments and 4 steps of each, one for every step."""
    batch: int = 256
    """Steps drawn for an update; a multiple of the number of environments."""
    capacity: int = 1_000_000
    """Steps that replay remembers, over all environments."""
    warm_up: int = 5_000
    """Steps to make at random before the first update."""
    learning_rate: float = 1e-3
    """Step size of Adam, for actor and critic."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    tau: float = 0.005
    """How far the target networks move to the present ones with every update."""
    noise: float = 0.1
    """Deviation of the noise in acting, as a share of half the distance between an action's bounds."""
    network: Any = "auto"
    """auto, mlp, cnn, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of an MLP."""

    @property
    def actor(self) -> Actor:
        return actor(self.spec, self.network, self.hidden)

    @property
    def critic(self) -> Critics:
        return critics(self.spec, self.hidden, 1, self.network)

    def init(self, key: Any) -> Any:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": self.actor.init(actor_key), "critic": self.critic.init(critic_key)}

    def optimiser(self) -> Any:
        return {"actor": optax.adam(self.learning_rate), "critic": optax.adam(self.learning_rate)}

    def state(self, params: Any) -> dict[str, Any]:
        return {"target": shared(params)}

    @act
    def explore(self, actor: Any, updates: Any, obs: Any, key: Any) -> Any:
        space = self.actor.space
        action = perturb(space, self.actor.mode(actor, obs), row_noise(space, key), self.noise)
        return jnp.where(updates == 0, random_actions(space, key), action)

    @act
    def exploit(self, actor: Any, obs: Any) -> Any:
        return self.actor.mode(actor, obs)

    def critic_loss(self, params: Any, target: Any, step: Transition) -> Any:
        action = self.actor.mode(target["actor"], step.next_obs)
        (future,) = self.critic.value(target["critic"], step.next_obs, action)
        wanted = step.reward + self.discount * jnp.where(step.terminated, 0.0, future)
        (q,) = self.critic.value(params["critic"], step.obs, step.action)
        return jnp.square(q - wanted).mean(), {"q": q.mean()}

    def actor_loss(self, params: Any, obs: Any) -> Any:
        (q,) = self.critic.value(params["critic"], obs, self.actor.mode(params["actor"], obs))
        return -q.mean()

    @learn
    def follow(self, target: Any, params: Any) -> Any:
        return polyak(target, params, self.tau)

    def loop(self, env: Any, learner: Any, state: Any, replay: Any) -> None:
        for _ in env.steps(self.horizon):
            env.step(self.explore(learner.params["actor"], learner.updates["actor"], env.obs))
        replay.add(env.rollout, self.capacity)
        ready = replay.ready(self.warm_up)
        for sample in replay.sample(self.batch, self.updates):
            learner.step(self.critic_loss, state.target, sample.data, part="critic", when=ready)
            learner.step(self.actor_loss, sample.data.obs, part="actor", when=ready)
            state.target = self.follow(state.target, learner.params)

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params["actor"], env.obs))
