"""Environments: simulators, policy workers and trainers, each kind by itself (SRL's three workers)."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.errors import UsageError
from sherd.policies.base import LEARNING, DistributionPolicy, Fragment
from sherd.spaces import EnvSpec


@dataclass(frozen=True)
class Environments(DistributionPolicy):
    """Simulators, policy workers that infer for them at every step, and trainers."""

    actors: int = 2
    """Processes that step environments."""
    policies: int = 1
    """Processes that infer actions; each serves the same number of simulators."""
    learners: int = 1
    """Processes that learn; several average their gradients."""
    asynchronous: bool = False
    """Do not wait for the trainers: act with the latest parameters, learn from what has arrived."""
    max_staleness: int = 4
    """Asynchronous only: rollouts made with parameters more than this many versions old are dropped."""
    ring: int = 2
    """Groups that a simulator's environments form: one is stepped while another is being inferred."""

    def fragments(self) -> tuple[Fragment, ...]:
        """Three kinds of workers."""
        return (
            Fragment("actors", ("env",), self.actors),
            Fragment("policies", ("act",), self.policies),
            Fragment("learners", LEARNING, self.learners),
        )

    def require(self, spec: EnvSpec, envs: int) -> None:
        """Besides the shares: simulators are divided among policy workers, and one trainer takes a queue."""
        super().require(spec, envs)
        if self.actors % self.policies:
            raise UsageError(
                f"Environments: {self.actors} actors cannot be shared evenly by {self.policies} policies\n"
                f"  fix: use a multiple of {self.policies} actors"
            )
        if self.asynchronous and self.learners > 1:
            raise UsageError(
                "Environments: several learners that average gradients take the same step together, so they "
                "cannot be asynchronous\n  fix: use one learner, or leave out --policy.asynchronous"
            )
