"""Prune: drop stacks that nobody reads, so that a rollout that is not used is not kept."""

from __future__ import annotations

from dataclasses import replace

from sherd.graph.ir import Graph, Node, Scope, uses


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
