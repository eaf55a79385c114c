"""Lowering: from a graph to programs, as XLA alone or as a host loop around compiled regions.

In: a graph and a policy. Out: a `Program`. May import: everything from errors to policies.
"""

from sherd.lower.program import Order, Program, build

__all__ = ["Order", "Program", "build"]
