"""An algorithm that is as unlike PPO as the graph allows, for the conformance matrix.

Its loop is written out. Acting carries a fading memory per environment; learning carries a sum for each,
statistics that all share, and an old copy of the parameters that follows every fourth update. There are no
minibatches, and two different losses take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from sherd import Algorithm, act, learn, per_env, shared
from sherd.nn.statistics import initial_moments, update_moments


@dataclass(frozen=True)
class Carried(Algorithm):
    """REINFORCE with a fading memory, scaled gains, and a pull towards old parameters."""

    horizon: int = 16
    fading: float = 0.5
    learning_rate: float = 0.1
    pull: float = 0.01

    def init(self, key: Any) -> Any:
        width, actions = int(np.prod(self.spec.observation.shape)), int(self.spec.action.n)
        now, before = jax.random.split(key)
        return {
            "now": 0.3 * jax.random.normal(now, (width, actions)),
            "before": 0.3 * jax.random.normal(before, (width, actions)),
        }

    def optimiser(self) -> Any:
        return optax.sgd(self.learning_rate, momentum=0.5)

    def state(self, params: Any) -> dict[str, Any]:
        return {
            "memory": per_env(jnp.zeros(self.spec.observation.shape)),
            "earned": per_env(jnp.zeros(())),
            "gains": shared(initial_moments(jnp.zeros(()))),
            "old": shared(params),
        }

    def logits(self, params: Any, obs: Any, memory: Any) -> Any:
        return obs @ params["now"] + memory @ params["before"]

    @act
    def explore(self, params: Any, obs: Any, first: Any, memory: Any, key: Any) -> Any:
        memory = jnp.where(first[:, None], 0.0, memory)
        action = jax.vmap(jax.random.categorical)(key, self.logits(params, obs, memory))
        return action.astype(jnp.int32), memory, self.fading * memory + obs

    @learn
    def weigh(self, gains: Any, earned: Any, rollout: Any) -> Any:
        """Gains that begin with what each environment earned in earlier rollouts."""
        ended = rollout.terminated | rollout.truncated

        def step(carried: Any, row: Any) -> Any:
            carried = 0.9 * carried + row[0]
            return jnp.where(row[1], 0.0, carried), carried

        earned, sums = jax.lax.scan(step, earned, (rollout.reward, ended))
        gains = update_moments(gains, sums)
        gain = (sums - gains.mean) * jax.lax.rsqrt(gains.var + 1e-3)
        batch = {"obs": rollout.obs, "memory": rollout.extra, "action": rollout.action, "gain": gain}
        return batch, gains, earned

    def chase(self, params: Any, batch: Any) -> Any:
        log_probs = jax.nn.log_softmax(self.logits(params, batch["obs"], batch["memory"]))
        chosen = jnp.take_along_axis(log_probs, batch["action"][..., None], -1)[..., 0]
        entropy = -(jnp.exp(log_probs) * log_probs).sum(-1).mean()
        return -(chosen * batch["gain"]).mean(), {"entropy": entropy}

    def stay(self, params: Any, old: Any) -> Any:
        apart = jax.tree.map(lambda new, old: jnp.square(new - old).sum(), params, old)
        return self.pull * sum(jax.tree.leaves(apart))

    def loop(self, env: Any, learner: Any, state: Any) -> None:
        for _ in env.steps(self.horizon):
            action, seen, state.memory = self.explore(learner.params, env.obs, env.first, state.memory)
            env.step(action, seen)
        batch, state.gains, state.earned = self.weigh(state.gains, state.earned, env.rollout)
        learner.step(self.chase, batch)
        learner.step(self.stay, state.old)
        state.old = learner.every(4, learner.params, state.old)
