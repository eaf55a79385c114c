"""Small tasks that test one ability each: memory, and obeying a mask of legal actions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.envs.graph.classic import CartPole
from sherd.spaces import MASK_KEY, EnvSpec


class StatelessCartPole(CartPole):
    """CartPole whose velocities are hidden: only a policy with a memory can tell which way things move."""

    def __init__(self) -> None:
        super().__init__()
        high = np.array([2 * self._max_position, 2 * self._max_angle], np.float32)
        box = gym_spaces.Box(-high, high, dtype=np.float32)
        self.spec = EnvSpec("graph/StatelessCartPole-v1", box, gym_spaces.Discrete(2), "graph")

    def _observe(self, physics: jax.Array) -> jax.Array:
        return physics[jnp.array([0, 2])].astype(jnp.float32)


class Offer(NamedTuple):
    """What is on offer at this step: a score and a legality for every action."""

    scores: Any
    legal: Any
    t: Any


class LegalMoves:
    """Sixteen actions with random scores, four of them legal at each step; an illegal one ends the episode.

    The reward is the score of the action taken. Twenty steps of always taking the best legal action give
    20 * 4/5 = 16 on average (the expected maximum of four uniform numbers is 4/5), and of taking any legal
    action 10. Legality shows in the mask alone, so a policy that ignores it lasts 1/3 of a step on average.
    """

    actions, legal_actions, time_limit = 16, 4, 20

    def __init__(self) -> None:
        scores = gym_spaces.Box(0, 1, (self.actions,), np.float32)
        observation = gym_spaces.Dict({"observation": scores, MASK_KEY: gym_spaces.MultiBinary(self.actions)})
        self.spec = EnvSpec("graph/LegalMoves-v0", observation, gym_spaces.Discrete(self.actions), "graph")

    def reset(self, key: Any) -> tuple[Offer, dict[str, Any]]:
        """Start an episode: (state, observation)."""
        offer = self._offer(key, jnp.int32(0))
        return offer, self._observe(offer)

    def step(self, key: Any, state: Offer, action: Any) -> tuple[Offer, dict[str, Any], Any, Any, Any]:
        """One step: (state, observation, reward, terminated, truncated)."""
        allowed = state.legal[action]
        reward = jnp.where(allowed, state.scores[action], 0.0)
        offer = self._offer(key, state.t + 1)
        return offer, self._observe(offer), reward, ~allowed, offer.t >= self.time_limit

    def _offer(self, key: Any, t: Any) -> Offer:
        scores_key, legal_key = jax.random.split(key)
        order = jax.random.uniform(legal_key, (self.actions,))
        threshold = jnp.sort(order)[self.legal_actions - 1]
        return Offer(jax.random.uniform(scores_key, (self.actions,)), order <= threshold, t)

    def _observe(self, offer: Offer) -> dict[str, Any]:
        return {"observation": offer.scores, MASK_KEY: offer.legal.astype(jnp.int8)}
