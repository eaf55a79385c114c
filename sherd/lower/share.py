"""A replica's share of the run: which environments are its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Share:
    """Environments `first` to `first + count` of `envs`.

    >>> Share.of_replica(8, replica=1, replicas=2)
    Share(first=4, count=4, envs=8)
    """

    first: int
    count: int
    envs: int

    @classmethod
    def of_replica(cls, envs: int, replica: int = 0, replicas: int = 1) -> Share:
        """The share of one replica of several."""
        count = envs // replicas
        return cls(replica * count, count, envs)

    def index(self) -> np.ndarray:
        """The global indices of the environments."""
        return np.arange(self.first, self.first + self.count, dtype=np.int32)
