"""Executors share one contract: `start(order)` gives a run to iterate over.

In: an `Order`. Out: progress. May import: everything from errors to runtime.
"""

from __future__ import annotations

from typing import Any

from sherd.errors import UsageError, nearest
from sherd.executors import inline

BUILT_IN: dict[str, Any] = {"inline": inline.start}


def load_executor(name: str) -> Any:
    """The start function of an executor.

    >>> load_executor("inline").__name__
    'start'
    """
    if name not in BUILT_IN:
        raise UsageError(f"unknown executor {name!r}: {nearest(name, BUILT_IN)}")
    return BUILT_IN[name]
