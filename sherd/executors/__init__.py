"""Executors share one contract: `start(order)` gives a run to iterate over.

In: an `Order`. Out: progress. May import: everything from errors to runtime.
"""

from __future__ import annotations

from typing import Any

from sherd.errors import UsageError, nearest
from sherd.executors import inline, process
from sherd.policies import DistributionPolicy, Fused

BUILT_IN: dict[str, Any] = {"inline": inline.start, "process": process.start}


def choose_executor(name: str, policy: DistributionPolicy) -> str:
    """The executor that `auto` stands for: processes, if the policy asks for more than one.

    >>> from sherd.policies import Single
    >>> choose_executor("auto", Single())
    'inline'
    """
    if isinstance(policy, Fused):
        if name == "process":
            raise UsageError(
                "Fused is one program in this process, over its devices: there is nothing to give to others\n"
                "  fix: leave --executor out, or choose another policy, such as MultiLearner"
            )
        return "inline"
    several = sum(fragment.replicas for fragment in policy.fragments()) > 1
    return ("process" if several else "inline") if name == "auto" else name


def load_executor(name: str) -> Any:
    """The start function of an executor.

    >>> load_executor("inline").__name__
    'start'
    """
    if name not in BUILT_IN:
        raise UsageError(f"unknown executor {name!r}: {nearest(name, ['auto', *BUILT_IN])}")
    return BUILT_IN[name]
