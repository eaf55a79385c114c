"""Central: workers that compute gradients, a server that applies them (parameter server; A3C)."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.policies.base import ROLES, DistributionPolicy, Fragment


@dataclass(frozen=True)
class Central(DistributionPolicy):
    """Workers step, act and compute gradients; a server applies them and hands out parameters."""

    workers: int = 2
    """Processes that step, act and compute gradients on their share."""
    asynchronous: bool = False
    """A3C's manner: every gradient is applied as it arrives, to parameters that may have moved on."""
    max_staleness: int = 32
    """Asynchronous only: gradients computed with parameters more than this many versions old are dropped."""

    def fragments(self) -> tuple[Fragment, ...]:
        """Workers and a server."""
        working = tuple(role for role in ROLES if role != "apply")
        return (Fragment("workers", working, self.workers), Fragment("server", ("apply",)))
