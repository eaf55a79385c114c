"""Check: is a graph well formed? If not, name the node, its neighbours and the author's line."""

from __future__ import annotations

from sherd.errors import Source, UsageError
from sherd.graph.ir import Graph, Node, Ref, Scope, refs_in
from sherd.graph.shapes import same_type

ROLES = ("env", "act", "learn", "grad", "apply", "replay", "eval")


def check(graph: Graph) -> Graph:
    """Return the graph if it is well formed, else raise a UsageError that shows the neighbourhood."""
    known = {graph.iteration, graph.total}
    for carry in graph.root.carries:
        known.add(carry.inner)
    if graph.steps_per_iteration() == 0:
        raise UsageError(
            f"the loop of {graph.name} never steps the environment\n  at {graph.root.source.quoted()}\n"
            "  fix: call env.step or env.unroll in it"
        )
    cells = [cell.name for cell in graph.cells]
    carried = [carry.cell for carry in graph.root.carries]
    if sorted(cells) != sorted(carried):
        missing = set(cells) ^ set(carried)
        raise UsageError(f"cells and the root's carries disagree about {', '.join(sorted(missing))}")
    _check_scope(graph, graph.root, known, is_root=True)
    return graph


def _check_scope(graph: Graph, scope: Scope, known: set[int], is_root: bool = False) -> None:
    if scope.trips < 1:
        _fail(graph, scope, None, f"scope {scope.name!r} has a trip count of {scope.trips}", scope.source)
    inside = set(known)
    if not is_root:
        inside.add(scope.index)
        for carry in scope.carries:
            _use(graph, scope, None, carry.initial, known)
            inside.add(carry.inner)
    names = [node.name for node in graph.nodes()]
    for item in scope.body:
        if isinstance(item, Scope):
            _check_scope(graph, item, inside)
            defined = [c.outer for c in item.carries] + [s.outer for s in item.stacks]
        else:
            _check_node(graph, scope, item, inside, names)
            defined = [item.output]
        for value in defined:
            if value in inside:
                _fail(graph, scope, item, f"value {_name(graph, value)} is defined twice", item.source)
            if value not in graph.values:
                _fail(graph, scope, item, f"value %{value} has no type", item.source)
        inside.update(defined)
    for carry in scope.carries:
        _use(graph, scope, None, carry.result, inside)
        before, after = (
            graph.values[carry.inner].type,
            carry.result.pick(graph.values[carry.result.value].type),
        )
        if not same_type(before, after):
            _fail(
                graph,
                scope,
                None,
                f"cell {carry.cell!r} leaves {scope.name!r} with another type",
                scope.source,
            )
    for stack in scope.stacks:
        for ref in refs_in(stack.inner):
            _use(graph, scope, None, ref, inside)


def _check_node(graph: Graph, scope: Scope, node: Node, inside: set[int], names: list[str]) -> None:
    if node.role not in ROLES:
        _fail(graph, scope, node, f"node {node.name!r} has the unknown role {node.role!r}", node.source)
    if names.count(node.name) > 1:
        _fail(
            graph, scope, node, f"two nodes are called {node.name!r}, so they would share keys", node.source
        )
    for ref in refs_in(node.inputs):
        _use(graph, scope, node, ref, inside)


def _use(graph: Graph, scope: Scope, node: Node | None, ref: Ref, known: set[int]) -> None:
    source = node.source if node else scope.source
    if ref.value not in known:
        what = f"{_name(graph, ref.value)} is used before it is defined, or outside the loop that defines it"
        _fail(graph, scope, node, what, source)
    try:
        ref.pick(graph.values[ref.value].type)
    except (AttributeError, KeyError, IndexError, TypeError):
        _fail(graph, scope, node, f"{_name(graph, ref.value)} has no part {ref.suffix()}", source)


def _name(graph: Graph, value: int) -> str:
    return f"%{value} ({graph.values[value].name})" if value in graph.values else f"%{value}"


def _fail(graph: Graph, scope: Scope, item: Node | Scope | None, what: str, source: Source) -> None:
    from sherd.graph.text import render_item

    items = list(scope.body)
    at = items.index(item) if item in items else max(len(items) - 1, 0)
    near = items[max(at - 1, 0) : at + 2]
    lines = [("  > " if other is item else "    ") + render_item(graph, other) for other in near]
    raise UsageError(
        f"ill-formed graph of {graph.name}: {what}\n  in scope {scope.name!r}:\n"
        + "\n".join(lines)
        + f"\n  at {source.quoted()}\n  fix: pass values out of a loop through a handle (env.rollout, state.<name>)"
    )
