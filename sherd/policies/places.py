"""Where everything in a graph is: what defines each value, at which point of the program, in which fragment.

Values live where the node that computes them runs. Carries and stacks are only wiring: a carry is where its
writer is, a leaf of a stack is where that leaf is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from sherd.errors import UsageError
from sherd.graph.ir import Carry, Graph, Node, Ref, Scope, Stack, Step, is_ref, walk
from sherd.policies.base import DistributionPolicy


@dataclass(frozen=True)
class Definition:
    """What defines a value: `what` is a Node, a Carry ("inner", "outer"), a Stack, or nothing ("given")."""

    kind: str
    scope: Scope
    position: int
    what: Any = None


class Places:
    """An index of a graph under an assignment of its nodes to fragments."""

    def __init__(self, graph: Graph, owner: dict[str, str]) -> None:
        self.graph, self.owner = graph, owner
        self.definitions: dict[int, Definition] = {}
        self.parents: dict[int, Scope] = {}  # by the scope's turn index, which identifies it
        self.ends: dict[int, int] = {}
        self.positions: dict[int, int] = {}  # by a node's output or a scope's turn index
        self._clock = 0
        for value in (graph.iteration, graph.total):
            self.definitions[value] = Definition("given", graph.root, 0)
        self._index(graph.root)
        self._owners = {
            scope.index: {owner[node.name] for node in walk(scope)} for scope in self.scopes(graph.root)
        }

    def scopes(self, scope: Scope) -> list[Scope]:
        """A scope and all scopes in it."""
        inner = [item for item in scope.body if isinstance(item, Scope)]
        return [scope, *(found for item in inner for found in self.scopes(item))]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _index(self, scope: Scope) -> None:
        start = self._tick()
        self.definitions.setdefault(scope.index, Definition("given", scope, start))
        for carry in scope.carries:
            self.definitions[carry.inner] = Definition("inner", scope, start, carry)
        for item in scope.body:
            if isinstance(item, Scope):
                self.parents[item.index] = scope
                self._index(item)
                leaving = self.positions[item.index] = self._tick()
                for carry in item.carries:
                    self.definitions[carry.outer] = Definition("outer", item, leaving, carry)
                for stack in item.stacks:
                    self.definitions[stack.outer] = Definition("stack", item, leaving, stack)
            else:
                at = self.positions[item.output] = self._tick()
                self.definitions[item.output] = Definition("node", scope, at, item)
        self.ends[scope.index] = self._tick()

    def takes_part(self, fragment: str, scope: Scope) -> bool:
        """Whether a fragment owns a node in a scope or in one inside it."""
        return scope is self.graph.root or fragment in self._owners[scope.index]

    def home(self, ref: Ref) -> str | None:
        """The fragment that computes what a reference leads to; None: everybody has it."""
        found = self.definitions[ref.value]
        if found.kind == "node":
            return self.owner[found.what.name]
        if found.kind in ("inner", "outer"):
            writer = self.writer(found.what)
            return self.owner[writer.name] if writer else None
        if found.kind == "stack":
            homes = {self.home(leaf) for _, leaf in stack_leaves(found.what, ref.path)}
            return next((home for home in sorted(filter(None, homes))), None)
        return None

    def writer(self, carry: Carry) -> Node | None:
        """The node whose output a carry ends each turn with; None: it never changes."""
        ref, seen = carry.result, {carry.inner}
        while ref.value not in seen:
            seen.add(ref.value)
            found = self.definitions[ref.value]
            if found.kind == "node":
                node: Node = found.what
                return node
            if found.kind not in ("outer", "inner"):
                return None
            ref = found.what.result
        return None

    def chain(self, scope: Scope) -> list[Scope]:
        """The scope and those around it, the root first."""
        chain = [scope]
        while chain[0].index in self.parents:
            chain.insert(0, self.parents[chain[0].index])
        return chain

    def times(self, scope: Scope) -> int:
        """How often a scope's body runs in one iteration."""
        product = 1
        for around in self.chain(scope)[1:]:
            product *= around.trips
        return product

    def is_empty(self, ref: Ref) -> bool:
        """Whether there are no arrays in what a reference leads to."""
        return not jax.tree.leaves(ref.pick(self.graph.values[ref.value].type))

    def type_of(self, ref: Ref) -> tuple[Any, tuple[int | None, ...]]:
        """The type and the environment axes of what a reference leads to."""
        value = self.graph.values[ref.value]
        axes = jax.tree.leaves(ref.pick(value.axes_tree()))
        return ref.pick(value.type), tuple(None if axis < 0 else axis for axis in axes)


def assign(graph: Graph, policy: DistributionPolicy) -> dict[str, str]:
    """Node by node, the name of the fragment that owns it."""
    names = [fragment.name for fragment in policy.fragments()]
    claims = [role for fragment in policy.fragments() for role in fragment.roles]
    twice = sorted(
        {role for role in claims if claims.count(role) > 1} | {n for n in names if names.count(n) > 1}
    )
    if twice:
        raise UsageError(f"{policy.name} names {', '.join(twice)} twice among its fragments")
    owner = {node.name: policy.owner(node) for node in graph.nodes()}
    unknown = sorted(set(owner.values()) - set(names))
    if unknown:
        raise UsageError(
            f"{policy.name} gives nodes to {unknown[0]!r}, which is none of its fragments: {names}"
        )
    return owner


def extend(ref: Ref, path: tuple[Step, ...]) -> Ref:
    """The part of a reference that a further path leads to."""
    return Ref(ref.value, ref.path + path)


def stack_leaves(stack: Stack, path: tuple[Step, ...]) -> list[tuple[tuple[Step, ...], Ref]]:
    """The references under a path into a stack: where each is in the stack, and what one turn puts there."""
    tree, walked = stack.inner, 0
    for kind, name in path:
        if isinstance(tree, Ref):
            break
        tree = getattr(tree, name) if kind == "attr" else tree[name]
        walked += 1
    if isinstance(tree, Ref):
        return [(path, extend(tree, path[walked:]))]
    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_ref)
    return [
        (path + tuple(step_of(key) for key in keys), leaf) for keys, leaf in found if isinstance(leaf, Ref)
    ]


def step_of(key: Any) -> Step:
    """One key of a JAX path as a step of ours."""
    if isinstance(key, jax.tree_util.GetAttrKey):
        return ("attr", key.name)
    return ("item", key.key if isinstance(key, jax.tree_util.DictKey) else key.idx)
