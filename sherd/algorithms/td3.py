"""Twin Delayed DDPG (Fujimoto et al., 2018): DDPG that does not believe its own overestimates.

`docs/algorithms/td3.md` explains each detail and where it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from sherd.author import Algorithm, Transition, act, learn, shared
from sherd.nn.continuous import Actor, Critics, actor, critics, row_noise
from sherd.nn.noise import batch_noise, random_actions
from sherd.nn.squash import perturb
from sherd.nn.targets import polyak


@dataclass(frozen=True)
class TD3(Algorithm):
    """Twin Delayed DDPG, for Box actions with finite bounds."""

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
    """Step size of Adam, for actor and critics."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    tau: float = 0.005
    """How far the target networks move to the present ones, each time the actor is updated."""
    delay: int = 2
    """Updates of the critics for each of the actor and of the targets."""
    noise: float = 0.1
    """Deviation of the noise in acting, as a share of half the distance between an action's bounds."""
    smoothing: float = 0.2
    """Deviation of the noise on the target's actions, in the same measure."""
    smoothing_clip: float = 0.5
    """The most that this noise can be."""
    network: Any = "auto"
    """auto, mlp, cnn, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of an MLP."""

    @property
    def actor(self) -> Actor:
        return actor(self.spec, self.network, self.hidden)

    @property
    def critic(self) -> Critics:
        return critics(self.spec, self.hidden, 2, self.network)

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

    def critic_loss(self, params: Any, target: Any, step: Transition, keys: Any) -> Any:
        space = self.actor.space
        noise = batch_noise(space, keys, step.reward.shape[0])
        smooth = self.actor.mode(target["actor"], step.next_obs)
        smooth = perturb(space, smooth, noise, self.smoothing, self.smoothing_clip)
        future = self.critic.value(target["critic"], step.next_obs, smooth).min(axis=0)
        wanted = step.reward + self.discount * jnp.where(step.terminated, 0.0, future)
        q = self.critic.value(params["critic"], step.obs, step.action)
        return jnp.square(q - wanted).mean(axis=(1, 2)).sum(), {"q": q.mean()}

    def actor_loss(self, params: Any, obs: Any) -> Any:
        q = self.critic.value(params["critic"], obs, self.actor.mode(params["actor"], obs))
        return -q[0].mean()

    @learn
    def due(self, ready: Any, updates: Any) -> Any:
        return ready & (updates % self.delay == 0)

    @learn
    def follow(self, target: Any, params: Any, due: Any) -> Any:
        return polyak(target, params, jnp.where(due, self.tau, 0.0))

    def loop(self, env: Any, learner: Any, state: Any, replay: Any) -> None:
        for _ in env.steps(self.horizon):
            env.step(self.explore(learner.params["actor"], learner.updates["critic"], env.obs))
        replay.add(env.rollout, self.capacity)
        ready = replay.ready(self.warm_up)
        for sample in replay.sample(self.batch, self.updates):
            learner.step(self.critic_loss, state.target, sample.data, part="critic", when=ready)
            due = self.due(ready, learner.updates["critic"])
            learner.step(self.actor_loss, sample.data.obs, part="actor", when=due)
            state.target = self.follow(state.target, learner.params, due)

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params["actor"], env.obs))
