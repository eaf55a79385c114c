"""Single: everything in one process. The reference that all other policies are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sherd.policies.base import DistributionPolicy

ROLES = ("env", "act", "learn", "grad", "apply", "replay", "eval")


@dataclass(frozen=True)
class Single(DistributionPolicy):
    """Everything in one process: a host loop around compiled regions."""

    fragments: ClassVar[dict[str, str]] = dict.fromkeys(ROLES, "main")
