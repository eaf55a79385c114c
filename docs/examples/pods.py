"""A distribution policy of one's own: actors on one side, several learners on the other.

sherd train ppo CartPole-v1 --policy pods:Pods --policy.actors 4 --policy.learners 2
"""

from __future__ import annotations

from dataclasses import dataclass

from sherd import DistributionPolicy
from sherd.policies import Fragment


@dataclass(frozen=True)
class Pods(DistributionPolicy):
    """Actors step and act; several learners take a part of every rollout and average their gradients."""

    actors: int = 2
    """Processes that step environments and act, each on its share of them."""
    learners: int = 2
    """Processes that learn, each from its share of the environments."""

    def fragments(self) -> tuple[Fragment, ...]:
        """Actors and learners."""
        return (
            Fragment("actors", ("env", "act"), self.actors),
            Fragment("learners", ("learn", "grad", "apply", "replay", "eval"), self.learners),
        )
