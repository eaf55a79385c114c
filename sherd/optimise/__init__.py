"""Optimise: an ordered list of small passes, fragments in, fragments out.

In: `Fragments`. Out: `Fragments` that mean the same and cost less. May import: everything from errors to
policies. Two more of the design's passes need to know what compiles and live where that is known, in the
lowering: maximal compiled regions (`lower/regions.py`) and donated buffers (`lower/host.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from sherd.optimise.colocate import batch_replicas, merge_colocated
from sherd.optimise.fission import split_loops
from sherd.optimise.messages import coalesce, prefetch
from sherd.optimise.ring import form_rings
from sherd.policies.partition import Fragments

Pass = Callable[[Fragments], Fragments]

# For fragments that each have a process of their own.
APART: tuple[Pass, ...] = (split_loops, form_rings, coalesce, prefetch)
# For fragments that share one process.
TOGETHER: tuple[Pass, ...] = (batch_replicas, merge_colocated, coalesce, prefetch)

__all__ = [
    "APART",
    "TOGETHER",
    "batch_replicas",
    "coalesce",
    "form_rings",
    "merge_colocated",
    "optimise",
    "prefetch",
    "split_loops",
]


def optimise(cut: Fragments, passes: tuple[Pass, ...] = APART) -> Fragments:
    """Apply passes in order."""
    for one in passes:
        cut = one(cut)
    return cut
