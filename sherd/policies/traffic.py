"""What a cut costs: how each message travels, how often, and how many bytes that makes in an iteration."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from sherd.graph.ir import Node, Scope
from sherd.policies.partition import Crossing, Fragments, bytes_of, part_names


@dataclass(frozen=True)
class Traffic:
    """One message, or one reduction between the replicas of a fragment, as a person would be told of it.

    `size` is what one such message holds, summed over the replicas that send it. What is broadcast counts
    once, however many read it.
    """

    name: str
    source: str
    target: str
    how: str
    parts: tuple[str, ...]
    times: int
    cadence: str
    size: int
    position: int

    @property
    def per_iteration(self) -> int:
        return self.times * self.size


def traffic(cut: Fragments) -> list[Traffic]:
    """Everything that leaves a process, in the order of the program."""
    crossings = [_of_crossing(cut, crossing) for crossing in cut.crossings]
    reductions = [_of_reduction(cut, node, scope) for node, scope in _reductions(cut)]
    return sorted([*crossings, *reductions], key=lambda t: t.position)


def manner(cut: Fragments, crossing: Crossing) -> str:
    """How a message travels between that many replicas, in the words of collective communication."""
    sources, targets = cut[crossing.source].replicas, cut[crossing.target].replicas
    if crossing.how == "mean":
        return "mean"
    if crossing.how == "shared":
        return "broadcast" if targets > 1 else "send"
    if sources == targets:
        return "send" if sources == 1 else "pairwise"
    if max(sources, targets) % min(sources, targets):
        return "all-to-all"
    return "gather" if sources > targets else "scatter"


def cadence(cut: Fragments, scope: Scope) -> str:
    """When the body of a scope runs: `every turn of epochs / minibatches`."""
    around = [one.name for one in cut.places().chain(scope)[1:]]
    return f"every turn of {' / '.join(around)}" if around else "once"


def size(count: int) -> str:
    """A number of bytes.

    >>> size(32), size(56_320), size(3_000_000)
    ('32 B', '56.3 kB', '3.0 MB')
    """
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if count >= 10**power:
            return f"{count / 10**power:,.1f} {unit}"
    return f"{count} B"


def _of_crossing(cut: Fragments, crossing: Crossing) -> Traffic:
    scope = next(s for s in cut.places().scopes(cut.graph.root) if s.index == crossing.scope)
    return Traffic(
        name=crossing.name,
        source=crossing.source,
        target=crossing.target,
        how=manner(cut, crossing),
        parts=part_names(cut.graph, crossing),
        times=crossing.times,
        cadence=cadence(cut, scope),
        size=bytes_of(cut, crossing),
        position=crossing.sent,
    )


def _of_reduction(cut: Fragments, node: Node, scope: Scope) -> Traffic:
    """Gradients, averaged between the replicas that computed them."""
    places, name = cut.places(), cut.owner[node.name]
    leaves = jax.tree.leaves(cut.graph.values[node.output].type)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return Traffic(
        name=f"{name}:{node.name}",
        source=name,
        target=name,
        how="all-reduce",
        parts=(node.name,),
        times=places.times(scope),
        cadence=cadence(cut, scope),
        size=held * cut[name].replicas,
        position=places.positions[node.output],
    )


def _reductions(cut: Fragments) -> list[tuple[Node, Scope]]:
    """The gradients that replicas average between themselves, since no server does it for them."""
    served = {ref.value for crossing in cut.crossings if crossing.how == "mean" for ref in crossing.parts}
    return [
        (item, scope)
        for scope in cut.places().scopes(cut.graph.root)
        for item in scope.body
        if isinstance(item, Node)
        and item.role == "grad"
        and item.output not in served
        and cut.collective(cut.owner[item.name])
    ]
