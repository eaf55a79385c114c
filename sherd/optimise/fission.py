"""Loop fission: what a fragment makes in every turn without hearing from the others leaves its loop at once.

A shard of replay memory draws batch after batch for a learner that answers nothing, unless priorities say
what to draw next. Sent turn by turn, every batch costs a message and wakes a process, and the learner's loop
is one of Python's around receiving. So the loop is split in two: the first fills a stack, which crosses as
one message, and the second takes its turns from it, all in one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from sherd.author.stage import Op
from sherd.graph.ir import Graph, Node, Ref, Scope, Stack, Value, is_ref, refs_in
from sherd.policies.base import REDUCING
from sherd.policies.needs import covers
from sherd.policies.partition import Fragments, project
from sherd.policies.places import Places

# Not tuned: so much is copied in some milliseconds. What is larger is better sent turn by turn, the next
# batch made while the last is learnt from.
_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class _Split:
    """A loop's nodes that can go ahead, those that wait for them, and what the latter use of the former."""

    scope: Scope
    ahead: tuple[Node, ...]
    behind: tuple[Node, ...]
    used: tuple[Ref, ...]


def split_loops(cut: Fragments) -> Fragments:
    """Loops in which a learner never answers the one it hears from become two loops, one after the other."""
    places = cut.places()
    for scope in places.scopes(cut.graph.root)[1:]:
        owners = {cut.owner[item.name] for item in scope.body if isinstance(item, Node)}
        if len(owners) != 2 or not all(isinstance(item, Node) for item in scope.body):
            continue
        for name in sorted(owners):
            if found := _split(cut, places, scope, name):
                return split_loops(_apart(cut, found))
    return cut


def _split(cut: Fragments, places: Places, scope: Scope, name: str) -> _Split | None:
    """How a loop comes apart if this fragment's nodes go ahead; None: they cannot, or it would not pay."""
    nodes = [item for item in scope.body if isinstance(item, Node)]
    ahead = tuple(node for node in nodes if cut.owner[node.name] == name)
    behind = tuple(node for node in nodes if node not in ahead)
    made, later = {node.output for node in ahead}, {node.output for node in behind}
    later |= {carry.inner for carry in scope.carries}
    waits = any(ref.value in later for node in ahead for ref in refs_in(node.inputs))
    ends = [carry.result for carry in scope.carries]
    ends += [ref for stack in scope.stacks for ref in refs_in(stack.inner)]
    averaged = any(node.role == "grad" for node in ahead)  # gradients are averaged where they cross
    # Taking a turn is learning: who only steps and acts must not come to be one of those that learn together.
    learns = any(node.role in REDUCING for node in behind)
    # What nobody computes is known to whoever takes part in the loop, and only one of the two would.
    known = any(places.home(ref) is None for ref in ends)
    if waits or averaged or known or not learns or any(ref.value in made for ref in ends):
        return None
    wanted = {ref for node in behind for ref in refs_in(node.inputs) if ref.value in made}
    used = [ref for ref in wanted if not any(other != ref and covers(other, ref) for other in wanted)]
    used = sorted(
        (ref for ref in used if not places.is_empty(ref)), key=lambda ref: (ref.value, str(ref.path))
    )
    leaves = [leaf for ref in used for leaf in jax.tree.leaves(places.type_of(ref)[0])]
    size = scope.trips * sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return _Split(scope, ahead, behind, tuple(used)) if used and size <= _MOST_BYTES else None


def _apart(cut: Fragments, split: _Split) -> Fragments:
    """The cut with one loop in two."""
    graph, scope = cut.graph, split.scope
    number, names = max(graph.values), {ref: _name(graph, ref) for ref in split.used}
    index, stacked, taken = number + 1, number + 2, number + 3
    types = {names[ref]: cut.places().type_of(ref) for ref in split.used}
    # Leaves of a dictionary come in the order of its keys.
    axes = tuple(axis for name in sorted(types) for axis in types[name][1])
    one = {name: type_ for name, (type_, _) in types.items()}
    all_turns = jax.tree.map(lambda t: jax.ShapeDtypeStruct((scope.trips, *t.shape), t.dtype), one)
    values = graph.values | {
        index: replace(graph.values[scope.index], id=index),
        stacked: Value(stacked, scope.name, all_turns, tuple(None if a is None else a + 1 for a in axes)),
        taken: Value(taken, f"{scope.name}.turn", one, axes),
    }

    def of_first(ref: Ref) -> Ref:
        return Ref(index, ref.path) if ref.value == scope.index else ref

    def of_second(ref: Ref) -> Ref:
        whole = next((other for other in split.used if covers(other, ref)), None)
        return ref if whole is None else Ref(taken, (("item", names[whole]), *ref.path[len(whole.path) :]))

    node = Node(
        _unused(graph, f"{scope.name}.turn"), _TURN, (Ref(stacked), Ref(scope.index)), taken, scope.source
    )
    first = replace(
        scope,
        index=index,
        body=tuple(replace(item, inputs=_mapped(item.inputs, of_first)) for item in split.ahead),
        carries=(),
        stacks=(Stack(scope.name, {names[ref]: ref for ref in split.used}, stacked),),
    )
    second = replace(
        scope,
        body=(node, *(replace(item, inputs=_mapped(item.inputs, of_second)) for item in split.behind)),
    )
    root = _with(graph.root, scope, (first, second))
    owner = cut.owner | {node.name: cut.owner[split.behind[0].name]}
    return project(replace(graph, root=root, values=values), cut.policy, cut.fragments, owner)


def _take_turn(stacked: Any, index: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), stacked)


_TURN = Op("turn", "learn", _take_turn)


def _name(graph: Graph, ref: Ref) -> str:
    return graph.values[ref.value].name + ref.suffix()


def _unused(graph: Graph, name: str) -> str:
    taken, number = {node.name for node in graph.nodes()}, 1
    while (found := name if number == 1 else f"{name}.{number}") in taken:
        number += 1
    return found


def _mapped(tree: Any, change: Callable[[Ref], Ref]) -> Any:
    return jax.tree.map(lambda leaf: change(leaf) if is_ref(leaf) else leaf, tree, is_leaf=is_ref)


def _with(around: Scope, old: Scope, new: tuple[Scope, ...]) -> Scope:
    """A scope in which another one gave way to some."""
    body: list[Node | Scope] = []
    for item in around.body:
        if item is old:
            body += new
        else:
            body.append(_with(item, old, new) if isinstance(item, Scope) else item)
    return replace(around, body=tuple(body))
