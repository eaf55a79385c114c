"""Distribution policies: which part of the graph runs where.

In: nothing but roles. Out: an assignment. May import: errors, spaces, envs, author, graph.
"""

from __future__ import annotations

from sherd.errors import UsageError, nearest
from sherd.imports import is_path, load_object
from sherd.policies.base import DistributionPolicy, Fragment
from sherd.policies.central import Central
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.environments import Environments
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.fused import Fused
from sherd.policies.multi import MultiLearner
from sherd.policies.shards import ReplayShards
from sherd.policies.single import Single

_POLICIES = (
    Single,
    SingleLearnerCoarse,
    SingleLearnerFine,
    MultiLearner,
    Fused,
    Environments,
    Central,
    ReplayShards,
)
BUILT_IN: dict[str, type[DistributionPolicy]] = {policy.__name__: policy for policy in _POLICIES}

__all__ = [
    "BUILT_IN",
    "Central",
    "DistributionPolicy",
    "Environments",
    "Fragment",
    "Fused",
    "MultiLearner",
    "ReplayShards",
    "Single",
    "SingleLearnerCoarse",
    "SingleLearnerFine",
    "load_policy",
]


def load_policy(name: str) -> type[DistributionPolicy]:
    """The policy class of that name.

    >>> load_policy("Single").__name__
    'Single'
    """
    found = load_object(name) if is_path(name) else BUILT_IN.get(name)
    if found is None:
        raise UsageError(f"unknown distribution policy {name!r}: {nearest(name, BUILT_IN)}")
    if not (isinstance(found, type) and issubclass(found, DistributionPolicy)):
        raise UsageError(f"{name} is not a DistributionPolicy\n  fix: subclass sherd.DistributionPolicy")
    return found
