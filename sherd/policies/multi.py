"""MultiLearner: everything replicated. Only gradients (and other reductions) cross, in every minibatch."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.policies.base import ROLES, DistributionPolicy, Fragment


@dataclass(frozen=True)
class MultiLearner(DistributionPolicy):
    """Replicas that step, act and learn on their share; gradients are averaged between them."""

    learners: int = 2
    """Processes, each with its share of the environments and a copy of the parameters."""

    def fragments(self) -> tuple[Fragment, ...]:
        """One, replicated."""
        return (Fragment("learners", ROLES, self.learners),)
