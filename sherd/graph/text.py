"""The graph as text that a person can read. `docs/graph.md` has the grammar and explains every word."""

from __future__ import annotations

import re
from collections.abc import Iterable

import jax

from sherd.graph.ir import Carry, Graph, Node, Ref, Scope, uses
from sherd.graph.notation import Notation, render_type, wrap

_WIDTH = 92  # source lines are written from this column on
_KEYS = {"none": "", "one": " key", "env": " key/env"}


def render(graph: Graph) -> str:
    """The whole graph."""
    notation = Notation(graph)
    steps = graph.steps_per_iteration()
    lines = [
        f"graph {graph.name} on {graph.spec.id} ({graph.spec.kind}), {graph.envs} environments, "
        f"{steps} steps per iteration",
        "",
        f"given  {notation.value(graph.iteration)}, {notation.value(graph.total)}",
        *_states(graph),
        "",
        _sourced("loop", graph.root),
        *_body(graph, notation, graph.root, "  "),
    ]
    return "\n".join(lines) + "\n"


def _states(graph: Graph) -> list[str]:
    values = {carry.cell: graph.values[carry.inner] for carry in graph.root.carries}
    full = [cell for cell in graph.cells if jax.tree.leaves(cell.type)]
    width = max((len(f"%{values[cell.name].id}:{cell.name}") for cell in full), default=0)
    lines = []
    for cell in full:
        value = values[cell.name]
        head = f"state  {f'%{value.id}:{cell.name}':<{width}} : "
        lines += _wrapped(head + render_type(value.type, value.axes_tree()), " " * (len(head) + 1))
    empty = [cell.name for cell in graph.cells if cell not in full]
    return lines + ([f"empty  {', '.join(empty)}"] if empty else [])


def _body(graph: Graph, notation: Notation, scope: Scope, indent: str) -> list[str]:
    lines: list[str] = []
    for item in scope.body:
        if isinstance(item, Scope):
            lines += _call(indent, _scope_line(notation, item), item)
            lines += _body(graph, notation, item, indent + "  ")
            lines += _leaves(graph, notation, item, indent)
        else:
            lines += _node(graph, notation, item, indent)
    return lines + _ending(graph, notation, scope, indent)


def _ending(graph: Graph, notation: Notation, scope: Scope, indent: str) -> list[str]:
    """What a turn hands on to the next, and what it keeps or tells the outside."""
    changed = [carry for carry in _shown(notation, scope) if carry.result != Ref(carry.inner)]
    lines = _listed(f"{indent}next   ", [f"{c.cell} = {notation.use(c.result)}" for c in changed])
    kept = [stack for stack in scope.stacks if not notation.is_empty(stack.inner)]
    words = [f"{stack.channel} = {notation.tree(stack.inner)}" for stack in kept]
    if scope is not graph.root:
        return lines + _listed(f"{indent}stack  ", words)
    for stack, word in zip(kept, words):
        lines += _wrapped(f"{indent}report {word}", indent + " " * 8)
        if not isinstance(stack.inner, Ref):
            lines += _typed(indent + " " * 7, notation.type(graph.values[stack.outer]))
    return lines


def _shown(notation: Notation, scope: Scope) -> list[Carry]:
    return [carry for carry in scope.carries if not notation.is_empty(Ref(carry.inner))]


def _scope_line(notation: Notation, scope: Scope) -> str:
    counted = any(ref.value == scope.index for ref in uses(scope))
    carried = [
        f"{notation.value(c.inner)} from %{c.initial.value}{c.initial.suffix()}"
        for c in _shown(notation, scope)
    ]
    turn = f" turn %{scope.index}" if counted else ""
    return f"scope {scope.name} x {scope.trips}{turn}" + (
        f" carrying {', '.join(carried)}" if carried else ""
    )


def _leaves(graph: Graph, notation: Notation, scope: Scope, indent: str) -> list[str]:
    lines = _listed(f"{indent}leaves ", [notation.value(c.outer) for c in _shown(notation, scope)])
    for stack in scope.stacks:
        if not notation.is_empty(Ref(stack.outer)):
            head = f"{indent}leaves {notation.value(stack.outer)} : "
            lines += _wrapped(head + notation.type(graph.values[stack.outer]), " " * (len(head) + 1))
    return lines


def _node(graph: Graph, notation: Notation, node: Node, indent: str) -> list[str]:
    """The call, then its type: behind it, below it, or part by part as uses index it."""
    call = _call_line(notation, node)
    if node.role == "send":
        return _call(indent, call, node)
    value = graph.values[node.output]
    below = indent + " " * (len(f"{node.role:<6} %{value.id} = "))
    parts = notation.parts(value) if node.role != "receive" else None
    if parts is not None:
        wrapped = [line for part in parts for line in _wrapped(below + part, below + "     ")]
        return [*_call(indent, call, node), *(wrapped or [f"{below}: ()"])]
    whole = notation.type(value) if node.role != "receive" else notation.message(node)
    if len(f"{indent}{call} : {whole}") <= _WIDTH - 2:
        return [_sourced(f"{indent}{call} : {whole}", node)]
    return [*_call(indent, call, node), *_typed(below, whole)]


def _typed(indent: str, text: str) -> list[str]:
    return _wrapped(f"{indent}: {text}", indent + "   ")


def _call_line(notation: Notation, node: Node) -> str:
    if node.role == "receive":
        return f"receive %{node.output} = {_crossing(node)}"
    if node.role == "send":
        return f"send   {_crossing(node)}({', '.join(map(notation.tree, node.inputs))})"
    arguments = ", ".join(notation.arguments(node))
    return f"{node.role:<6} %{node.output} = {node.name}({arguments}){_KEYS[node.op.key]}"


def _crossing(node: Node) -> str:
    return node.name.removeprefix(f"{node.role} ")


def render_item(graph: Graph, item: Node | Scope) -> str:
    """One node or scope in one line, for messages."""
    notation = Notation(graph)
    line = _scope_line(notation, item) if isinstance(item, Scope) else _call_line(notation, item)
    return f"{line}  # {item.source}"


def render_ending(graph: Graph, scope: Scope) -> list[str]:
    """How the body of a scope ends, for messages."""
    return _ending(graph, Notation(graph), scope, "")


def _sourced(line: str, item: Node | Scope) -> str:
    return f"{line:<{_WIDTH}}# {item.source}"


def _call(indent: str, line: str, item: Node | Scope) -> list[str]:
    """A call or a scope's first line; what does not fit is aligned with its first argument."""
    opening = re.search(r"\(| carrying ", line)
    first, *rest = _wrapped(indent + line, indent + " " * (opening.end() if opening else 9))
    return [_sourced(first, item), *rest]


def _listed(head: str, words: Iterable[str]) -> list[str]:
    text = ", ".join(words)
    return _wrapped(head + text, " " * len(head)) if text else []


def _wrapped(line: str, indent: str) -> list[str]:
    return wrap(line, indent, _WIDTH - 2)
