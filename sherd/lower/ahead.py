"""Rows that run ahead: who is done with a rollout begins the next one instead of waiting for the slowest.

Simulators that wait take unequally long. If all rows meet at the end of every rollout, each rollout takes as
long as its slowest row: of 32 rows that wait 32 times, from half to one and a half times as long as the mean,
91% of the steps are left that rows would make that never meet. If a row may be some turns ahead, nearly all
are: 97% with 4 turns, 98% with 8, 99% with 16 (by simulation).

What a row does ahead of the others it does with the parameters of the rollout before, so only an asynchronous
run may do so, and the next rollout counts as made with those older parameters. Nothing else changes: keys are
those of the next iteration, and what is carried from turn to turn goes on from where that row is.
"""

from __future__ import annotations

from sherd.graph.ir import Graph, Ref, Scope, defines
from sherd.lower.regions import inputs_of, nodes_in, roles_in
from sherd.lower.unit_call import env_axes

# Older parameters cost learning something: how far ahead is a part of the rollout.
_PART = 2
# Before a slow learner two rollouts of an actor wait while a third is made, so that one is up to three
# versions old when it is taken, and four if rows have begun it early. Where less is allowed it is dropped.
LEAST_STALENESS = 4


def turns_ahead(trips: int) -> int:
    """How many turns a row may be ahead of a rollout of so many.

    >>> [turns_ahead(trips) for trips in (1, 5, 32, 128)]
    [0, 2, 16, 64]
    """
    return trips // _PART


def may_run_ahead(graph: Graph, scope: Scope) -> bool:
    """Whether a loop can go on where it ended: nothing else acts, steps, or changes what it carries."""
    root, inner = graph.root, {carry.inner for carry in scope.carries}
    if not any(item is scope for item in root.body):
        return False
    others = [item for item in root.body if item is not scope]
    if any("env" in roles_in(item) for item in others) or len(nodes_in(scope)) != len(scope.body):
        return False
    kept = {Ref(carry.inner): carry.result for carry in root.carries}
    if any(kept.get(carry.initial) != Ref(carry.outer) for carry in scope.carries):
        return False
    # What is chosen once for a whole rollout (a goal, a perturbation) is another one in the next.
    chosen = {value for item in others if "act" in roles_in(item) for value in defines(item)}
    given = [ref for ref in inputs_of(list(scope.body[:-1])) if ref.value not in inner]
    return not any(
        ref.value in chosen or any(axis >= 0 for axis in env_axes(graph.values, ref)) for ref in given
    )
