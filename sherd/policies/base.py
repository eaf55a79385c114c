"""DistributionPolicy: an assignment of the graph's nodes to fragments. Nothing else.

Which values cross between fragments, who sends and who waits is derived from the assignment.
"""

from __future__ import annotations

from dataclasses import dataclass

from sherd.errors import UsageError, nearest
from sherd.graph.ir import Node
from sherd.spaces import EnvSpec

REDUCING = ("learn", "grad", "apply")  # these may reduce over the environments of all replicas
LEARNING = (*REDUCING, "replay", "eval")
ROLES = ("env", "act", *LEARNING)


@dataclass(frozen=True)
class Fragment:
    """A part of the graph that runs in one place: which roles it owns, and how many replicas it has.

    Replicas share the environments evenly: replica i of n holds the i-th of n equal ranges.
    """

    name: str
    roles: tuple[str, ...]
    replicas: int = 1
    ring: int = 1  # groups that a replica's environments are stepped in, set by the optimiser

    def __post_init__(self) -> None:
        if isinstance(self.roles, str):
            raise UsageError(f"Fragment({self.name!r}, {self.roles!r}): roles are a tuple of names")
        for role in self.roles:
            if role not in ROLES:
                raise UsageError(
                    f"Fragment {self.name!r} has the unknown role {role!r}: {nearest(role, ROLES)}"
                )

    @property
    def kind(self) -> str:
        """What a person would call such a worker.

        >>> Fragment("simulators", ("env",)).kind, Fragment("a", ("env", "act")).kind
        ('environment', 'actor')
        """
        owned = set(self.roles)
        if owned & {"learn", "grad"}:
            return "learner"
        if "apply" in owned:
            return "server"
        return {"env": "environment", "act": "policy", "replay": "replay"}.get(
            "".join(sorted(owned)), "actor"
        )


@dataclass(frozen=True)
class DistributionPolicy:
    """Subclass it as a frozen dataclass whose fields are what a user may choose at launch."""

    @property
    def runs_ahead(self) -> bool:
        """Asynchronous: parameters arrive as their latest value, and samples wait in bounded queues.

        A policy that can be so has the fields `asynchronous` and `max_staleness`.
        """
        return bool(getattr(self, "asynchronous", False))

    @property
    def staleness_limit(self) -> int:
        """How many versions old the parameters may be that a sample was made with."""
        return int(getattr(self, "max_staleness", 0))

    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments. Together they own every role, and no role twice."""
        raise UsageError(
            f"{type(self).__name__} does not define fragments()\n"
            "  fix: return the fragments that own the roles (docs/policies/your-own.md has an example)"
        )

    def owner(self, node: Node) -> str:
        """The name of the fragment that owns a node: the one with its role, unless a policy knows better."""
        for fragment in self.fragments():
            if node.role in fragment.roles:
                return fragment.name
        raise UsageError(
            f"{self.name} gives the role {node.role!r} of {node.name!r} to no fragment\n"
            f"  at {node.source.quoted()}\n"
            f"  fix: name {node.role!r} among the roles of one of its fragments"
        )

    @property
    def name(self) -> str:
        return type(self).__name__

    def require(self, spec: EnvSpec, envs: int) -> None:
        """Raise a UsageError if this policy cannot hold such an environment."""
        del spec
        for fragment in self.fragments():
            if fragment.replicas < 1:
                raise UsageError(
                    f"{self.name}: {fragment.replicas} {fragment.name} cannot work\n  fix: ask for 1 or more"
                )
            count, name = fragment.replicas, fragment.name
            if envs % count:
                raise UsageError(
                    f"{self.name}: {envs} environments cannot be shared evenly by {count} {name}\n"
                    f"  fix: use --envs with a multiple of {count}, or fewer {name}"
                )
        ring = getattr(self, "ring", 1)
        if ring < 1:
            raise UsageError(f"{self.name}: a ring of {ring} groups cannot work\n  fix: ask for 1 or more")
        if self.runs_ahead and self.staleness_limit < 0:
            raise UsageError(f"{self.name}: max_staleness is {self.staleness_limit}, but cannot be negative")
