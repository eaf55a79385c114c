"""ReplayShards: actors fill a replay memory that is sharded over processes of its own (Ape-X, R2D2)."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.policies.base import LEARNING, DistributionPolicy, Fragment


@dataclass(frozen=True)
class ReplayShards(DistributionPolicy):
    """Actors step and act, shards remember and draw, one learner learns from what they draw."""

    actors: int = 2
    """Processes that step environments and act."""
    shards: int = 1
    """Processes that hold replay memory, each that of its share of the environments."""
    asynchronous: bool = False
    """Do not wait for the learner: act with the latest parameters, as far ahead as the queues reach."""

    def fragments(self) -> tuple[Fragment, ...]:
        """Actors, shards and the learner."""
        learning = tuple(role for role in LEARNING if role != "replay")
        return (
            Fragment("actors", ("env", "act"), self.actors),
            Fragment("replay", ("replay",), self.shards),
            Fragment("learner", learning),
        )
