"""Plan: which process runs what, on which cores, with how many threads.

In: `Fragments`. Out: a `Plan` that can be printed. May import: everything from errors to optimise.
"""

from sherd.plan.place import Placement, Plan, place

__all__ = ["Placement", "Plan", "place"]
