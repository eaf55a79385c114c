"""SingleLearnerCoarse: actors that step and act, one learner. Rollouts cross once an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.policies.base import LEARNING, DistributionPolicy, Fragment


@dataclass(frozen=True)
class SingleLearnerCoarse(DistributionPolicy):
    """Actors step and act, one learner learns: rollouts and parameters cross once an iteration."""

    actors: int = 2
    """Processes that step environments and act, each on its share of them."""
    asynchronous: bool = False
    """Do not wait for each other: act with the latest parameters, learn from what has arrived."""
    max_staleness: int = 4
    """Asynchronous only: rollouts made with parameters more than this many versions old are dropped."""

    def fragments(self) -> tuple[Fragment, ...]:
        """Actors and a learner."""
        return (Fragment("actors", ("env", "act"), self.actors), Fragment("learner", LEARNING))
