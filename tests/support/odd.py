"""Algorithms whose state takes unusual ways, or ways that some cuts cannot follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from small import Reinforce

from sherd import act, learn, per_env, shared


@dataclass(frozen=True)
class Winding(Reinforce):
    """Cells that are set to each other, to a part of what a node makes, and by no node at all."""

    def state(self, params: Any) -> Any:
        cells = {"slow": shared(params), "older": shared(params), "constant": shared(jnp.float32(2))}
        return {**cells, "scores": per_env(jnp.float32(0)), "last": per_env(jnp.float32(0))}

    @act
    def score(self, scores: Any, last: Any, reward: Any, constant: Any) -> Any:
        return {"now": constant * scores + reward, "last": last + scores}

    @learn
    def compare(self, slow: Any, older: Any, last: Any) -> Any:
        return slow["w"].sum() - older["w"].sum() + last.sum()

    def loop(self, env: Any, learner: Any, state: Any) -> None:
        for _ in env.steps(self.horizon):
            action, extra = self.explore(learner.params, env.obs)
            transition = env.step(action, extra)
            scored = self.score(state.scores, state.last, transition.reward, state.constant)
            state.scores, state.last = scored["now"], scored["last"]
        learner.report({"gap": self.compare(state.slow, state.older, state.last)})
        state.older = state.slow
        state.slow = learner.params
        learner.step(self.loss, self.advantages(env.rollout))


@dataclass(frozen=True)
class SharedByActing(Reinforce):
    """A cell shared by all environments that acting writes."""

    def state(self, params: Any) -> Any:
        del params
        return {"seen": shared(jnp.float32(0))}

    @act
    def look(self, seen: Any, obs: Any) -> Any:
        return seen + obs.sum()

    def loop(self, env: Any, learner: Any, state: Any) -> None:
        for _ in env.steps(self.horizon):
            action, extra = self.explore(learner.params, env.obs)
            state.seen = self.look(state.seen, env.obs)
            env.step(action, extra)
        learner.step(self.loss, self.advantages(env.rollout))


@dataclass(frozen=True)
class Feedback(Reinforce):
    """Learning computes something for each environment that acting reads in the next iteration."""

    def state(self, params: Any) -> Any:
        del params
        return {"bonus": per_env(jnp.float32(0))}

    @act
    def nudge(self, extra: Any, bonus: Any) -> Any:
        return {**extra, "bonus": bonus}

    @learn
    def judge(self, rollout: Any) -> Any:
        return rollout.reward.mean(0)

    def loop(self, env: Any, learner: Any, state: Any) -> None:
        for _ in env.steps(self.horizon):
            action, extra = self.explore(learner.params, env.obs)
            env.step(action, self.nudge(extra, state.bonus))
        state.bonus = self.judge(env.rollout)
        learner.step(self.loss, self.advantages(env.rollout))
