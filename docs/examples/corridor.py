"""An environment of one's own: walk to the end of a corridor.

sherd check-env corridor:Corridor
sherd train ppo corridor:Corridor --steps 30000
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Corridor(gymnasium.Env[np.ndarray, int]):
    """Start somewhere, go left (0) or right (1); the right end pays 1, and every step costs a little."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    length, time_limit = 10, 50

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.time = int(self.np_random.integers(self.length)), 0
        return self._observe(), {}

    def step(self, action: int) -> Any:
        self.place = max(0, self.place + (1 if action == 1 else -1))
        self.time += 1
        arrived = self.place >= self.length
        late = self.time >= self.time_limit
        return self._observe(), 1.0 if arrived else -0.01, arrived, late, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.place / self.length], np.float32)
