"""SingleLearnerFine: simulators apart, one process that acts and learns. Observations cross at every step."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.policies.base import LEARNING, DistributionPolicy, Fragment


@dataclass(frozen=True)
class SingleLearnerFine(DistributionPolicy):
    """Simulators in processes of their own; one learner infers for all of them, at every step."""

    actors: int = 2
    """Processes that step environments, each its share of them."""
    ring: int = 2
    """Groups that a simulator's environments form: one is stepped while another is being inferred."""

    def fragments(self) -> tuple[Fragment, ...]:
        """Simulators and a learner that also acts."""
        return (Fragment("actors", ("env",), self.actors), Fragment("learner", ("act", *LEARNING)))
