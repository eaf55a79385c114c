"""Single: everything in one process. The reference that all other policies are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.policies.base import ROLES, DistributionPolicy, Fragment


@dataclass(frozen=True)
class Single(DistributionPolicy):
    """Everything in one process: a host loop around compiled regions."""

    def fragments(self) -> tuple[Fragment, ...]:
        """One."""
        return (Fragment("main", ROLES),)
