"""DistributionPolicy: an assignment of the graph's roles to fragments. Nothing else.

Which values cross between fragments, who sends and who waits is derived from the assignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sherd.spaces import EnvSpec


@dataclass(frozen=True)
class DistributionPolicy:
    """Subclass it as a frozen dataclass whose fields are what a user may choose at launch."""

    # role -> name of the fragment that owns the nodes of that role
    fragments: ClassVar[dict[str, str]] = {}

    @property
    def name(self) -> str:
        return type(self).__name__

    def require(self, spec: EnvSpec, envs: int) -> None:
        """Raise a UsageError if this policy cannot hold such an environment."""
        del spec, envs
