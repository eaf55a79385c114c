"""Tidy a recorded graph: drop stacks that nobody reads, and number values as a reader meets them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax

from sherd.graph.ir import Carry, Graph, Node, Ref, Scope, Stack, is_ref, uses


def prune(graph: Graph) -> Graph:
    """The same graph without unread stacks."""
    while True:
        read = {ref.value for ref in uses(graph.root)}
        root = _prune(graph.root, read | {stack.outer for stack in graph.root.stacks})
        if root == graph.root:
            return graph
        graph = replace(graph, root=root)


def _prune(scope: Scope, read: set[int]) -> Scope:
    body: list[Node | Scope] = [_prune(i, read) if isinstance(i, Scope) else i for i in scope.body]
    return replace(scope, body=tuple(body), stacks=tuple(s for s in scope.stacks if s.outer in read))


def renumber(graph: Graph) -> Graph:
    """The same graph with values numbered from 0 in reading order; bodies recorded twice leave gaps."""
    new: dict[int, int] = {}
    for old in (graph.iteration, graph.total, *(carry.inner for carry in graph.root.carries)):
        new.setdefault(old, len(new))
    _number(graph.root, new)
    values = {new[old]: replace(value, id=new[old]) for old, value in graph.values.items() if old in new}
    root = _renamed(graph.root, new)
    return replace(graph, root=root, values=values, iteration=new[graph.iteration], total=new[graph.total])


def _number(scope: Scope, new: dict[int, int]) -> None:
    for value in (scope.index, *(carry.inner for carry in scope.carries)):
        new.setdefault(value, len(new))
    for item in scope.body:
        if isinstance(item, Scope):
            _number(item, new)
        else:
            new.setdefault(item.output, len(new))
    for value in (*(carry.outer for carry in scope.carries), *(stack.outer for stack in scope.stacks)):
        new.setdefault(value, len(new))


def _renamed(scope: Scope, new: dict[int, int]) -> Scope:
    def renamed(tree: Any) -> Any:
        return jax.tree.map(
            lambda leaf: Ref(new[leaf.value], leaf.path) if isinstance(leaf, Ref) else leaf,
            tree,
            is_leaf=is_ref,
        )

    body: list[Node | Scope] = [
        _renamed(item, new)
        if isinstance(item, Scope)
        else replace(item, inputs=renamed(item.inputs), output=new[item.output])
        for item in scope.body
    ]
    carries = [
        Carry(c.cell, renamed(c.initial), new[c.inner], renamed(c.result), new[c.outer])
        for c in scope.carries
    ]
    stacks = [Stack(s.channel, renamed(s.inner), new[s.outer]) for s in scope.stacks]
    return replace(
        scope, index=new[scope.index], body=tuple(body), carries=tuple(carries), stacks=tuple(stacks)
    )
