"""Simulators that wait, one of them much longer: how far the others are ahead of it is written down.

They are imported by processes, which share nothing but a folder; the threads of one process share counters.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv

FOLDER, TURNS = "STRAGGLING_ENV", 8  # a variable of the environment; turns of a rollout


class Straggling(CartPoleEnv):
    """The first that is stepped straggles."""

    metadata = {**CartPoleEnv.metadata, "waits": True}
    made: dict[int, int] = {}  # steps of each

    def step(self, action: Any) -> Any:
        """Wait, then step; the straggler looks how far ahead of its own rollout's end the others are."""
        first = not self.made or next(iter(self.made)) == id(self)
        done = self.made.get(id(self), 0)
        self.made[id(self)] = done
        time.sleep(0.02 if first else 0.0)
        if first and done % TURNS == TURNS - 1:
            lead = max(self.made.values()) - (done + 1)
            with (Path(os.environ[FOLDER]) / str(os.getpid())).open("a") as file:
                file.write(f"{lead}\n")
        self.made[id(self)] = done + 1
        return super().step(action)


def make() -> Straggling:
    """One of them."""
    return Straggling()
