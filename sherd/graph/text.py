"""The graph as text that a person can read. `docs/graph.md` has the grammar."""

from __future__ import annotations

import math
from typing import Any

import jax

from sherd.graph.ir import Cell, Graph, Node, Ref, Scope, Stack, is_ref

_SHORT = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64",
    "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "bool": "bool", "key<fry>": "key",
}  # fmt: skip
_MANY = 9  # a type with more leaves than this is summed up


def render(graph: Graph) -> str:
    """The whole graph."""
    lines = [
        f"graph {graph.name} on {graph.spec.id} ({graph.spec.kind}), {graph.envs} environments, "
        f"{graph.steps_per_iteration()} steps per iteration",
        "",
    ]
    width = max(len(cell.name) for cell in graph.cells)
    inner = {carry.cell: carry.inner for carry in graph.root.carries}
    lines += [f"given %{graph.iteration} iteration, %{graph.total} total"]
    for cell in graph.cells:
        lines.append(f"state %{inner[cell.name]} {cell.name:<{width}} : {render_type(cell.type, _axes(cell))}")
    lines += ["", f"loop  # {graph.root.source}"]
    lines += _body(graph, graph.root, "  ")
    for stack in graph.reports:
        value = graph.values[stack.outer]
        lines.append(f"report {stack.channel} : {render_type(value.type, value.axes_tree())}")
    return "\n".join(lines) + "\n"


def _body(graph: Graph, scope: Scope, indent: str) -> list[str]:
    lines = []
    for item in scope.body:
        if isinstance(item, Scope):
            carried = ", ".join(f"%{carry.inner}:{carry.cell}" for carry in item.carries)
            carrying = f" carrying {carried}" if carried else ""
            lines.append(f"{indent}scope {item.name} %{item.index} x {item.trips}{carrying}  # {item.source}")
            lines += _body(graph, item, indent + "  ")
            lines += [f"{indent}  leaves %{carry.outer}:{carry.cell}" for carry in item.carries]
            lines += [f"{indent}  {_stack(graph, stack)}" for stack in item.stacks]
        else:
            lines.append(indent + render_item(graph, item))
    if scope is graph.root:
        changed = [c for c in scope.carries if c.result != Ref(c.inner)]
        lines += [f"{indent}next {carry.cell} = {_ref(graph, carry.result)}" for carry in changed]
    else:
        lines += [f"{indent}next {carry.cell} = {_ref(graph, carry.result)}" for carry in scope.carries]
    return lines


def _stack(graph: Graph, stack: Stack) -> str:
    value = graph.values[stack.outer]
    return f"stack %{value.id} {value.name} : {render_type(value.type, value.axes_tree())}"


def render_item(graph: Graph, item: Node | Scope) -> str:
    """One node or scope in one line."""
    if isinstance(item, Scope):
        return f"scope {item.name} x {item.trips}  # {item.source}"
    leaves = jax.tree.leaves(item.inputs, is_leaf=is_ref)
    arguments = [_ref(graph, leaf) if isinstance(leaf, Ref) else repr(leaf) for leaf in leaves]
    arguments += [f"{name}={value}" for name, value in item.op.knobs]
    value = graph.values.get(item.output)
    result = render_type(value.type, value.axes_tree()) if value else "?"
    key = {"none": "", "one": " key", "env": " key/env"}[item.op.key]
    return f"{item.role:<6} %{item.output} = {item.name}({', '.join(arguments)}){key} : {result}  # {item.source}"


def _ref(graph: Graph, ref: Ref) -> str:
    value = graph.values.get(ref.value)
    cell = value.name if value and value.name in {c.name for c in graph.cells} else None
    return f"%{ref.value}{':' + cell if cell else ''}{ref.suffix()}"


def _axes(cell: Cell) -> Any:
    axes = [-1 if axis is None else axis for axis in cell.env_axes]
    return jax.tree.unflatten(jax.tree.structure(cell.type), axes)


def render_type(type_: Any, axes: Any) -> str:
    """A pytree of shapes; the environment axis is marked with `e`."""
    leaves = jax.tree.leaves(type_)
    if isinstance(type_, jax.ShapeDtypeStruct):
        return _array(type_, axes)
    if not leaves:
        return "()"
    if hasattr(type_, "_fields") and (len(type_._fields) > 1 or len(leaves) <= _MANY):
        parts = [(f, getattr(type_, f), getattr(axes, f)) for f in type_._fields]
        inner = [f"{name} {render_type(t, a)}" for name, t, a in parts if jax.tree.leaves(t)]
        return "{" + ", ".join(inner) + "}"
    if type(type_) is tuple:
        return "(" + ", ".join(render_type(t, a) for t, a in zip(type_, axes)) + ")"
    if len(leaves) > _MANY or not isinstance(type_, dict):
        return f"<{len(leaves)} arrays, {sum(math.prod(leaf.shape) for leaf in leaves):,} numbers>"
    return "{" + ", ".join(f"{k} {render_type(v, axes[k])}" for k, v in type_.items()) + "}"


def _array(leaf: Any, axis: int) -> str:
    dims = [f"{size}e" if index == axis else str(size) for index, size in enumerate(leaf.shape)]
    return f"{_SHORT.get(str(leaf.dtype), str(leaf.dtype))}[{','.join(dims)}]"
