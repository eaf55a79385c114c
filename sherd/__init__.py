"""Sherd: write the training loop once, cut it anywhere, run it from a laptop to a cluster.

Names are loaded on first use, so that `import sherd` is quick and a process that only drives simulators
never loads JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sherd.author import Algorithm, Transition, act, as_vector, learn, per_env, shared
    from sherd.author.reduce import mean, moments, standardise
    from sherd.errors import RunError, UsageError
    from sherd.graph import Graph, check, trace
    from sherd.policies import DistributionPolicy
    from sherd.run import Run, debug, evaluate, train

__version__ = "0.1.0"

_HOMES = {
    "sherd.author": ("Algorithm", "Transition", "act", "as_vector", "learn", "per_env", "shared"),
    "sherd.author.reduce": ("mean", "moments", "standardise"),
    "sherd.errors": ("RunError", "UsageError"),
    "sherd.graph": ("Graph", "check", "trace"),
    "sherd.policies": ("DistributionPolicy",),
    "sherd.run": ("Run", "debug", "evaluate", "train"),
}

__all__ = [
    "Algorithm",
    "DistributionPolicy",
    "Graph",
    "Run",
    "RunError",
    "Transition",
    "UsageError",
    "act",
    "as_vector",
    "check",
    "debug",
    "evaluate",
    "learn",
    "mean",
    "moments",
    "per_env",
    "shared",
    "standardise",
    "trace",
    "train",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'sherd' has no attribute {name!r}")
