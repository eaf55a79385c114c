"""Partition: from a graph and a distribution policy to fragments, by endpoint projection.

A fragment's program is the loop restricted to its nodes. What it receives follows from what its nodes need
(`needs.py`), what it sends is the same seen from the other side: since every send and every receive comes
from one line of one sequential program, the projected programs cannot deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from sherd.errors import UsageError
from sherd.graph.ir import Graph, Node, Ref, Scope, walk
from sherd.graph.notation import Notation
from sherd.policies.base import REDUCING, ROLES, DistributionPolicy, Fragment
from sherd.policies.needs import Needs, Part, Refresh
from sherd.policies.places import Places, assign, stack_leaves


@dataclass(frozen=True)
class Crossing:
    """One message: what crosses from one fragment to another at one moment of a scope's body.

    `how` it crosses follows from replica counts and environment axes: "rows" (each replica its environments:
    gather and scatter), "shared" (the same for all: broadcast) or "mean" (one from each replica, averaged).
    `sent` and `received` are positions in the program, in the body of the same scope.
    """

    name: str
    source: str
    target: str
    how: str
    scope: int
    times: int
    sent: int
    received: int
    first_use: int
    parts: tuple[Ref, ...]
    refreshes: tuple[tuple[int, Refresh], ...]  # (which part, what it becomes)


@dataclass(frozen=True)
class Fragments:
    """A graph cut into fragments, with everything that crosses between them."""

    graph: Graph
    policy: DistributionPolicy
    fragments: tuple[Fragment, ...]
    owner: dict[str, str]
    crossings: tuple[Crossing, ...]

    def __getitem__(self, name: str) -> Fragment:
        return next(fragment for fragment in self.fragments if fragment.name == name)

    def places(self) -> Places:
        """Where everything is."""
        return Places(self.graph, self.owner)

    def collective(self, name: str) -> bool:
        """Whether the replicas of a fragment learn together, so that their reductions see each other."""
        fragment = self[name]
        if fragment.replicas == 1 or self.policy.runs_ahead:
            return False
        return any(self.owner[n.name] == name and n.role in REDUCING for n in self.graph.nodes())

    def __str__(self) -> str:
        from sherd.policies.text import render

        return render(self)


def partition(graph: Graph, policy: DistributionPolicy) -> Fragments:
    """Cut a graph as a policy says.

    >>> from sherd.algorithms.ppo import PPO
    >>> from sherd.envs import describe
    >>> from sherd.graph import trace
    >>> from sherd.policies.coarse import SingleLearnerCoarse
    >>> cut = partition(trace(PPO(), describe("CartPole-v1"), 8), SingleLearnerCoarse(actors=2))
    >>> sorted({(c.source, c.target) for c in cut.crossings})
    [('actors', 'learner'), ('learner', 'actors')]
    """
    policy.require(graph.spec, graph.envs)
    owner = assign(graph, policy)
    used = tuple(_as_used(f, graph, owner) for f in policy.fragments() if f.name in owner.values())
    return project(graph, policy, used, owner)


def _as_used(fragment: Fragment, graph: Graph, owner: dict[str, str]) -> Fragment:
    """A fragment with the roles of the nodes that it really owns: they say what kind of worker it is."""
    owned = {node.role for node in graph.nodes() if owner[node.name] == fragment.name}
    return replace(fragment, roles=tuple(role for role in ROLES if role in owned))


def project(
    graph: Graph, policy: DistributionPolicy, fragments: tuple[Fragment, ...], owner: dict[str, str]
) -> Fragments:
    """Derive what crosses from who owns what."""
    places = Places(graph, owner)
    cut = Fragments(graph, policy, fragments, owner, ())
    require_one_owner(cut, places)
    crossings = [
        _crossing(cut, places, fragment.name, part)
        for fragment in fragments
        for part in Needs(places, fragment.name).parts.values()
    ]
    crossings.sort(key=lambda c: (c.sent, c.target, str(c.parts)))
    cut = Fragments(graph, policy, fragments, owner, tuple(crossings))
    require_no_starving(cut)
    return cut


def _crossing(cut: Fragments, places: Places, target: str, part: Part) -> Crossing:
    _, axes = places.type_of(part.ref)
    found = places.definitions[part.ref.value]
    how = "rows"
    if all(axis is None for axis in axes):
        averaged = isinstance(found.what, Node) and found.what.role == "grad"
        how = "mean" if averaged and cut[part.source].replicas > 1 else "shared"
    return Crossing(
        name=f"{part.source}>{target}:{places.graph.values[part.ref.value].name}{part.ref.suffix()}",
        source=part.source,
        target=target,
        how=how,
        scope=part.scope.index,
        times=places.times(part.scope),
        sent=part.position,
        received=part.position,
        first_use=part.first_use,
        parts=(part.ref,),
        refreshes=tuple((0, refresh) for refresh in part.refreshes),
    )


def require_one_owner(cut: Fragments, places: Places) -> None:
    """A state cell that two fragments, or replicas that do not learn together, would write is an error."""
    writers: dict[str, list[Node]] = {}
    for scope in places.scopes(cut.graph.root):
        for carry in scope.carries:
            before = places.definitions[carry.initial.value]  # a node that writes the cell before this loop
            nodes = [before.what] if before.kind == "node" else []
            writers.setdefault(carry.cell, []).extend(filter(None, (*nodes, places.writer(carry))))
    for cell, nodes in writers.items():
        if not nodes:
            continue
        others = [node for node in nodes if cut.owner[node.name] != cut.owner[nodes[0].name]]
        if others:
            first, second = nodes[0], others[0]
            raise UsageError(
                f"{cut.policy.name} would give the state cell {cell!r} two owners: {first.name!r} in "
                f"{cut.owner[first.name]!r} and {second.name!r} in {cut.owner[second.name]!r} both write it\n"
                f"  at {first.source.quoted()}\n  at {second.source.quoted()}\n"
                "  fix: give both nodes to one fragment, or keep what they write in two cells"
            )
        _require_shared_once(cut, cell, nodes[0])


def _require_shared_once(cut: Fragments, cell: str, writer: Node) -> None:
    fragment = cut[cut.owner[writer.name]]
    held = next(c for c in cut.graph.cells if c.name == cell)
    shared = any(axis is None for axis in held.env_axes)
    if not shared or fragment.replicas == 1 or cut.collective(fragment.name) or cut.policy.runs_ahead:
        return
    raise UsageError(
        f"{cut.policy.name} would give the state cell {cell!r} {fragment.replicas} owners: it is shared by "
        f"all environments, and every replica of {fragment.name!r} would write its own in {writer.name!r}\n"
        f"  at {writer.source.quoted()}\n"
        f"  fix: write {cell!r} in a @learn stage, declare it per_env(...), or use one replica"
    )


def require_no_starving(cut: Fragments) -> None:
    """Who runs ahead must not wait for rows that are made from what it sends."""
    if not cut.policy.runs_ahead:
        return
    free = {f.name for f in cut.fragments if f.kind in ("environment", "actor", "policy")}
    nodes = {node.output: node for node in walk(cut.graph.root)}
    for crossing in cut.crossings:
        if crossing.how == "rows" and crossing.target in free and crossing.source not in free:
            ref = crossing.parts[0]
            node = nodes.get(ref.value)
            raise UsageError(
                f"{cut.policy.name} would starve {crossing.target!r}: it runs ahead of {crossing.source!r}, "
                f"but waits for what that computes for each environment "
                f"({cut.graph.values[ref.value].name}{ref.suffix()})\n"
                + (f"  at {node.source.quoted()}\n" if node else "")
                + "  fix: leave out --policy.asynchronous, or let acting read only what is shared by all"
            )


def part_names(graph: Graph, crossing: Crossing) -> tuple[str, ...]:
    """What a person would call the parts of a message: by the mirror that one refreshes, by what a rollout
    keeps it as, or else by what makes it."""
    notation, kept = Notation(graph), _kept_as(graph.root)
    names = [kept.get(ref) or notation.name(ref) for ref in crossing.parts]
    for number, refresh in crossing.refreshes:
        if not refresh.inside:
            names[number] = refresh.cell + Ref(0, refresh.path).suffix()
    return tuple(names)


def _kept_as(scope: Scope) -> dict[Ref, str]:
    """The names under which loops stack what their turns make."""
    names: dict[Ref, str] = {}
    for item in scope.body:
        names |= _kept_as(item) if isinstance(item, Scope) else {}
    for stack in scope.stacks:
        names |= {leaf: str(path[-1][1]) for path, leaf in stack_leaves(stack, ()) if path}
    return names


def bytes_of(cut: Fragments, crossing: Crossing) -> int:
    """How many bytes one message has, over all replicas that send it."""
    places = cut.places()
    leaves: list[Any] = [leaf for ref in crossing.parts for leaf in jax.tree.leaves(places.type_of(ref)[0])]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return size * (cut[crossing.source].replicas if crossing.how == "mean" else 1)
