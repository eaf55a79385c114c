"""Soft Actor-Critic (Haarnoja et al., 2018) with a learnt temperature.

For Box actions and, after Christodoulou (2019), for Discrete ones. `docs/algorithms/sac.md` explains each
detail and where it comes from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import optax

from sherd.author import Algorithm, Transition, act, learn, shared
from sherd.nn.once import computed_once
from sherd.nn.soft import Soft, soft
from sherd.nn.targets import polyak


@dataclass(frozen=True)
class SAC(Algorithm):
    """Soft Actor-Critic, for Box actions with finite bounds and for Discrete ones."""

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
    learning_rate: float = 3e-4
    """Step size of Adam, for actor, critics and temperature."""
    discount: float = 0.99
    """How much a reward one step later is worth."""
    tau: float = 0.005
    """How far the target critics move to the present ones with every update."""
    temperature: float = 1.0
    """What a nat of entropy is worth, at the beginning."""
    learn_temperature: bool = True
    """Raise or lower the temperature until the policy has the entropy that it should."""
    entropy_ratio: float | None = None
    """That entropy: of a Box in units of minus its size (None: 1), of n choices of log n (None: 0.5)."""
    network: Any = "auto"
    """auto, mlp, cnn, `module:attribute`, or any object with init(key, obs) and apply(params, obs)."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of an MLP."""

    @property
    def model(self) -> Soft:
        return soft(self.spec, self.network, self.hidden)

    def init(self, key: Any) -> Any:
        return {**self.model.init(key), "temperature": jnp.float32(math.log(self.temperature))}

    def optimiser(self) -> Any:
        return {part: optax.adam(self.learning_rate) for part in ("actor", "critic", "temperature")}

    def state(self, params: Any) -> dict[str, Any]:
        return {"target": shared(params["critic"])}

    @act
    def explore(self, actor: Any, updates: Any, obs: Any, key: Any) -> Any:
        random, chosen = self.model.random(obs, key), self.model.sample(actor, obs, key)
        return jnp.where(updates == 0, random, chosen)

    @act
    def exploit(self, actor: Any, obs: Any) -> Any:
        return self.model.mode(actor, obs)

    def critic_loss(self, params: Any, target: Any, step: Transition, keys: Any) -> Any:
        value, log_prob = self.model.judge(params["actor"], target, step.next_obs, keys)
        future = value - jnp.exp(params["temperature"]) * log_prob
        wanted = step.reward + self.discount * jnp.where(step.terminated, 0.0, future)
        q = self.model.q(params["critic"], step.obs, step.action)
        return jnp.square(q - wanted).mean(axis=(1, 2)).sum(), {"q": q.mean()}

    def actor_loss(self, params: Any, obs: Any, keys: Any) -> Any:
        value, log_prob = self.model.judge(params["actor"], params["critic"], obs, keys)
        loss = jnp.exp(params["temperature"]) * log_prob - value
        return loss.mean(), {"entropy": -log_prob.mean()}, log_prob

    def temperature_loss(self, params: Any, obs: Any, log_prob: Any) -> Any:
        # In one program with the other losses XLA would merge these few numbers' sums and round otherwise.
        temperature, log_prob = jnp.exp(computed_once(params["temperature"])), computed_once(log_prob)
        lacking = log_prob + self.model.entropy_target(obs, self.entropy_ratio)
        return -(temperature * lacking).mean(), {"temperature": temperature}

    @learn
    def follow(self, target: Any, critic: Any) -> Any:
        return polyak(target, critic, self.tau)

    def loop(self, env: Any, learner: Any, state: Any, replay: Any) -> None:
        for _ in env.steps(self.horizon):
            env.step(self.explore(learner.params["actor"], learner.updates["actor"], env.obs))
        replay.add(env.rollout, self.capacity)
        ready, heat = replay.ready(self.warm_up), float(self.learn_temperature)
        for sample in replay.sample(self.batch, self.updates):
            step = sample.data
            learner.step(self.critic_loss, state.target, step, part="critic", when=ready)
            update = learner.step(self.actor_loss, step.obs, part="actor", when=ready)
            learner.step(
                self.temperature_loss, step.obs, update.rows, part="temperature", scale=heat, when=ready
            )
            state.target = self.follow(state.target, learner.params["critic"])

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params["actor"], env.obs))
