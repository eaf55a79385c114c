"""Simulators that take a millisecond for a step, as one that waits for a game server or a robot does."""

from __future__ import annotations

import random
import time
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

SECONDS = 0.001


class SlowCartPoleEnv(CartPoleEnv):
    """CartPole that sleeps in every step."""

    def step(self, action: Any) -> Any:
        """Sleep, then step."""
        time.sleep(SECONDS)
        return super().step(action)


class UnevenCartPoleEnv(CartPoleEnv):
    """CartPole that sleeps in every step, now longer, now shorter: waiting for all is slow."""

    metadata = {**CartPoleEnv.metadata, "waits": True}  # Sherd steps such simulators in threads

    def step(self, action: Any) -> Any:
        """Sleep from half to one and a half times as long, then step."""
        time.sleep(SECONDS * random.uniform(0.5, 1.5))
        return super().step(action)


def make() -> TimeLimit:
    """One environment, with CartPole's limit of 500 steps."""
    return TimeLimit(SlowCartPoleEnv(), 500)


def make_uneven() -> TimeLimit:
    """One environment whose steps take unequally long."""
    return TimeLimit(UnevenCartPoleEnv(), 500)
