"""What a drawing shows, before anything has a place: boxes of rows, nested frames, and what they are tied to.

State is tied on the left of a box, to the line of its cell; values are tied on the right, to a *net* that
joins the one row that produces a value with the rows that use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import jax

from sherd.graph.ir import Carry, Graph, Node, Ref, Scope, Stack, refs_in, uses
from sherd.graph.notation import Notation, render_type, wrap

Writes = list[tuple[Ref, str]]  # what a turn leaves in which cell
Net = tuple[int, Any]  # a value, and which part of it if it is a tuple
TIMES = "\N{MULTIPLICATION SIGN}"
_KEYS = {"none": "", "one": "key", "env": "key/env"}


@dataclass
class Row:
    """A line of a box. `cell` and `net` are what its two ends are tied to; `cell_out`, `net_out` the way."""

    left: str = ""
    right: str = ""
    cell: str | None = None
    cell_out: bool = False
    net: Net | None = None
    net_out: bool = False
    rule: bool = False  # a thin line above
    y: float = 0


@dataclass
class Box:
    """A node, a state cell, or what a scope keeps at the end of a turn."""

    kind: str
    title: str
    note: str
    source: str
    rows: list[Row]
    hint: str = ""
    y: float = 0
    height: float = 0


@dataclass
class Frame:
    """A scope."""

    title: str
    source: str
    carried: list[str]
    turn: Net | None
    items: list[Box | Frame] = field(default_factory=list)
    y: float = 0
    height: float = 0
    right: float = 0
    depth: int = 0


@dataclass
class Diagram:
    """The whole picture."""

    title: str
    subtitle: str
    roles: list[str]
    cells: list[Box]
    empty: list[str]
    root: Frame


def diagram(graph: Graph) -> Diagram:
    """What to draw of a graph."""
    builder = _Builder(graph)
    root = builder.frame(graph.root, "one training iteration")
    used = {row.cell for box in boxes(root) for row in box.rows}
    given = [Box("given", name, "given i32[]", "", []) for name in ("iteration", "total") if name in used]
    cells = [builder.cell_box(cell.name) for cell in graph.cells if jax.tree.leaves(cell.type)]
    steps = f"{graph.steps_per_iteration():,} steps per iteration"
    roles = list(dict.fromkeys(node.role for node in graph.nodes()))
    empty = [cell.name for cell in graph.cells if not jax.tree.leaves(cell.type)]
    where = f"{graph.spec.kind} environment {TIMES} {graph.envs}"
    return Diagram(f"{graph.name} on {graph.spec.id}", f"{where}, {steps}", roles, cells + given, empty, root)


def boxes(frame: Frame) -> Iterable[Box]:
    """Every box of a frame, from top to bottom."""
    for item in frame.items:
        if isinstance(item, Frame):
            yield from boxes(item)
        else:
            yield item


def frames(frame: Frame) -> Iterable[Frame]:
    """A frame and those in it, outer ones first."""
    yield frame
    for item in frame.items:
        if isinstance(item, Frame):
            yield from frames(item)


class _Builder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._notation = Notation(graph)
        self._uses = uses(graph.root)
        self._cell_of = {graph.iteration: "iteration", graph.total: "total"}  # values that live on a line
        self._now: dict[str, int | None] = {}  # what each line holds at this point of the program
        self._replaced: dict[int, str] = {}  # which item replaced a value that a line held

    def cell_box(self, name: str) -> Box:
        """A state cell with its type."""
        cell = next(cell for cell in self._graph.cells if cell.name == name)
        inner = next(carry.inner for carry in self._graph.root.carries if carry.cell == name)
        text = render_type(cell.type, self._graph.values[inner].axes_tree())
        return Box("cell", name, f"state %{inner}", "", [Row(line) for line in _broken(text)], text)

    def frame(self, scope: Scope, title: str) -> Frame:
        """A scope and everything in it."""
        carries = self._shown(scope)
        for carry in carries:
            self._cell_of[carry.inner] = self._cell_of[carry.outer] = carry.cell
            self._put(carry.cell, carry.inner, scope.name)
        writes = [(carry.result, carry.cell) for carry in carries if carry.result != Ref(carry.inner)]
        frame = Frame(title, str(scope.source), [cell for _, cell in writes], (scope.index, None))
        inner = [item for item in scope.body if isinstance(item, Scope)]
        writes += [(carry.initial, carry.cell) for item in inner for carry in self._shown(item)]
        for item in scope.body:
            if isinstance(item, Scope):
                frame.items += self._entry(item, writes)
                frame.items.append(self.frame(item, f"{item.name} {TIMES} {item.trips}"))
                for carry in self._shown(item):
                    self._put(carry.cell, carry.outer, item.name)
            else:
                frame.items.append(self.node_box(item, writes))
        last = self.last_box(scope, writes)
        frame.items += [last] if last.rows else []
        return frame

    def _shown(self, scope: Scope) -> list[Carry]:
        return [carry for carry in scope.carries if not self._notation.is_empty(Ref(carry.inner))]

    def _entry(self, scope: Scope, writes: Writes) -> list[Box]:
        """What a scope starts from, where that is neither what the line holds nor what a node wrote to it."""
        rows: list[Row] = []
        for carry in self._shown(scope):
            if (carry.initial, carry.cell) in writes:
                writes.remove((carry.initial, carry.cell))
                rows += self._next_rows(carry.initial, carry.cell)
        return [Box("stack", f"before {scope.name}", "", "", rows)] if rows else []

    def _next_rows(self, result: Ref, cell: str) -> list[Row]:
        held = self._now.get(cell)
        if held is not None and result == Ref(held):
            return []
        return [*self._inputs([result]), Row(f"next {cell}", cell=cell, cell_out=True)]

    def _put(self, cell: str, value: int | None, by: str) -> None:
        """From here on the line of a cell holds another value."""
        old = self._now.get(cell)
        if old is not None:
            self._replaced[old] = by
        self._now[cell] = value

    def node_box(self, node: Node, writes: Writes) -> Box:
        """A node: what it reads on the left, what it uses on the right, then what it makes."""
        refs = [ref for ref in refs_in(node.inputs) if not self._notation.is_empty(ref)]
        words = [word for word in self._notation.arguments(node) if "=" in word and "%" not in word]
        rows = self._inputs(refs)
        for word in words:
            free = next((row for row in rows if not row.left), None)
            if free is None:
                rows.append(Row(word))
            else:
                free.left = word
        outputs = self._outputs(node.output, writes, node.name)
        if rows and outputs:
            outputs[0].rule = True
        note = "  ".join(word for word in (node.role, _KEYS[node.op.key]) if word)
        hint = self._notation.type(self._graph.values.get(node.output))
        return Box(node.role, node.name, f"%{node.output}  {note}", str(node.source), rows + outputs, hint)

    def _inputs(self, refs: list[Ref]) -> list[Row]:
        """Reads of state and uses of values, side by side."""
        reads: dict[str, list[str]] = {}
        values: dict[tuple[str, Net], None] = {}  # in order, each once
        for ref in refs:
            cell = self._cell_of.get(ref.value)
            if cell is None:
                values[(_short(self._notation.use(ref)), self.net(ref))] = None
            else:
                words = reads.setdefault(cell, [])
                stale = self._now.get(cell, ref.value) != ref.value
                before = f" before {self._replaced.get(ref.value, 'this turn')}" if stale else ""
                word = (ref.suffix() or "") + before
                words += [word] if word not in words else []
        left = [(f"{cell}{', '.join(words)}", cell) for cell, words in reads.items()]
        right = list(values)
        rows = []
        for index in range(max(len(left), len(right))):
            text, cell = left[index] if index < len(left) else ("", None)
            use, net = right[index] if index < len(right) else ("", None)
            rows.append(Row(text, use, cell=cell, net=net))
        return rows

    def _outputs(self, output: int, writes: Writes, name: str) -> list[Row]:
        value = self._graph.values[output]
        parts = self._notation.parts(value)
        texts: list[tuple[int | None, str]] = [(None, f": {self._notation.type(value)}")]
        if parts is not None:
            texts = [(int(part[1 : part.index("]")]), part) for part in parts]
        rows = []
        for index, text in texts:
            first, *rest = _broken(text)
            made = Ref(output, () if index is None else (("item", index),))
            cell = next((cell for ref, cell in writes if ref == made), None)
            rows.append(Row(first, cell=cell, cell_out=True, net=(output, index), net_out=True))
            rows += [Row(("   " if index is None else "     ") + line) for line in rest]
            if cell is not None:
                writes.remove((made, cell))
                self._put(cell, None, name)
        if parts is not None and Ref(output) in self._uses:
            rows.append(Row("all of it", net=(output, None), net_out=True))
        return rows

    def last_box(self, scope: Scope, writes: Writes) -> Box:
        """What a turn hands on that no node does: writes of other values, and what is stacked or reported."""
        rows: list[Row] = []
        for result, cell in writes:
            rows += self._next_rows(result, cell)
        root = scope is self._graph.root
        title = "report" if root else f"stacked over {scope.trips} turns"
        if rows:
            title = f"end of the {'iteration' if root else 'turn'}"
        for stack in scope.stacks:
            if not self._notation.is_empty(stack.inner):
                rows += self._stack_rows(stack, root, not rows)
        return Box("report" if root else "stack", title, "", "", rows)

    def _stack_rows(self, stack: Stack, root: bool, is_first: bool) -> list[Row]:
        whole = list(dict.fromkeys(Ref(ref.value, ref.path[:1]) for ref in refs_in(stack.inner)))
        rows = self._inputs(whole) or [Row()]
        name = f"report {stack.channel}" if root else stack.channel
        rows[0].left = f"{name} from {rows[0].left}" if rows[0].left else name
        if root:
            return rows
        first, *rest = _broken(f": {self._notation.type(self._graph.values[stack.outer])}")
        rows[0].rule = not is_first
        out = Row(first, net=(stack.outer, None), net_out=True)
        return [*rows, out, *(Row("   " + line) for line in rest)]

    def net(self, ref: Ref) -> Net:
        """The net that a use is tied to."""
        value = self._graph.values[ref.value]
        is_part = type(value.type) is tuple and ref.path
        return (ref.value, ref.path[0][1] if is_part else None)


def _short(use: str) -> str:
    return use.split(":", 1)[-1]


def _broken(text: str, most: int = 4, width: int = 64) -> list[str]:
    """Break a text after commas into at most so many lines, and cut off the rest."""
    lines = wrap(text, "", width)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1] + " …"]
    return lines
