"""Fused: environment, acting and learning in one XLA program, many iterations a call, on every device."""

from __future__ import annotations

from dataclasses import dataclass

from sherd.errors import UsageError
from sherd.policies.base import ROLES, DistributionPolicy, Fragment
from sherd.spaces import EnvSpec


@dataclass(frozen=True)
class Fused(DistributionPolicy):
    """One XLA program for environment, acting and learning, replicated over devices."""

    devices: int = 0
    """Devices to spread the environments over; 0: all local ones. On a CPU, more are made on request."""

    def fragments(self) -> tuple[Fragment, ...]:
        """One."""
        return (Fragment("main", ROLES),)

    def require(self, spec: EnvSpec, envs: int) -> None:
        """Only an environment that is itself in-graph can be part of the program."""
        if spec.kind == "host":
            raise UsageError(
                f"Fused needs a graph environment, and {spec.id} is a host simulator\n"
                "  fix: use the policy Single (--policy Single), or a graph environment, "
                "such as graph/CartPole-v1, "
                "gymnax/<name> or brax/<name>"
            )
        if self.devices < 0:
            raise UsageError(
                f"Fused: {self.devices} devices cannot work\n  fix: ask for 1 or more; 0 means all"
            )
        if self.devices and envs % self.devices:
            raise UsageError(
                f"{envs} environments cannot be spread evenly over {self.devices} devices\n"
                f"  fix: use a number of environments that is a multiple of {max(self.devices, 1)}"
            )
