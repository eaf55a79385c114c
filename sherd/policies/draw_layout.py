"""Where everything in the drawing of a cut goes.

Fragments stand side by side, time runs down. Every node and every message has a row of its own, in the order
of the one program that all fragments are projections of: so a message is a straight line that meets no node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sherd.graph.draw_layout import GAP, HEADER, INSET, LETTER, MARGIN, ROW
from sherd.graph.draw_model import TIMES
from sherd.graph.ir import Node, Scope
from sherd.graph.notation import wrap
from sherd.policies.partition import Fragments
from sherd.policies.places import Places
from sherd.policies.project import projection
from sherd.policies.text import held_names
from sherd.policies.traffic import Traffic, size, traffic

TOP, SHADOW = 112.0, 5.0
PARTS, MOST = 40, 4  # letters in a line of a message's parts, and lines of them


@dataclass
class Column:
    """A fragment."""

    name: str
    title: str
    kind: str
    replicas: int
    notes: list[str]
    x: float = 0
    width: float = 0


@dataclass
class Mark:
    """A node, or a reduction between replicas, in the column of its fragment."""

    column: Column
    depth: int
    role: str
    title: str
    note: str
    y: float = 0


@dataclass
class Band:
    """A scope as one fragment sees it."""

    column: Column
    depth: int
    title: str
    y: float = 0
    height: float = 0


@dataclass
class Arrow:
    """A message: what is said above the line, and what below."""

    source: Column
    target: Column
    above: str
    below: list[str]
    y: float = 0

    def words(self) -> float:
        """The width of its longest line of text."""
        return LETTER * max(len(line) for line in (self.above, *self.below))


@dataclass
class Layout:
    """A cut in which everything has its place."""

    columns: dict[str, Column]
    marks: list[Mark] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    start: float = 0
    bottom: float = 0
    right: float = 0


def lay_out(cut: Fragments) -> Layout:
    """Give everything its place."""
    layout = Layout({fragment.name: _column(cut, fragment.name) for fragment in cut.fragments})
    notes = max(len(column.notes) for column in layout.columns.values())
    layout.start = TOP + HEADER + ROW * (notes + 1) + GAP
    layout.bottom = _Rows(cut, layout).place() + GAP
    x = MARGIN
    columns = list(layout.columns.values())
    for index, column in enumerate(columns):
        column.x, column.width = x, _width(layout, column)
        gap = max(_words(layout, columns, index), default=40.0) if index + 1 < len(columns) else 0.0
        x += column.width + gap
    layout.right = max(x + 2 * SHADOW, 720.0)
    return layout


def _column(cut: Fragments, name: str) -> Column:
    fragment, program = cut[name], projection(cut, name)
    notes = []
    for head, cells in (("owns", held_names(program, True)), ("mirrors", held_names(program, False))):
        notes += wrap(f"{head} {', '.join(cells)}", " " * (len(head) + 1), 44) if cells else []
    if fragment.ring > 1:
        notes.append(f"a ring of {fragment.ring} groups")
    if fragment.replicas > 1:
        notes.append(f"{cut.graph.envs // fragment.replicas} environments each")
    return Column(name, f"{name} {TIMES} {fragment.replicas}", fragment.kind, fragment.replicas, notes)


def _width(layout: Layout, column: Column) -> float:
    inner = [
        LETTER * (1.14 * len(m.title) + len(m.note) + 5) + 2 * INSET * (m.depth + 1)
        for m in layout.marks
        if m.column is column
    ]
    titles = [
        LETTER * 1.2 * len(b.title) + 2 * INSET * (b.depth + 1) for b in layout.bands if b.column is column
    ]
    head = LETTER * (1.3 * len(column.title) + len(column.kind) + 5)
    return max([head, *inner, *titles, *(LETTER * (len(note) + 3) for note in column.notes)])


def _words(layout: Layout, columns: list[Column], index: int) -> Iterator[float]:
    """How wide the texts between a column and the next are; a message's text is beside whoever sends it."""
    for arrow in layout.arrows:
        rightward = columns.index(arrow.target) > columns.index(arrow.source)
        left = columns.index(arrow.source) - (0 if rightward else 1)
        if left == index:
            yield arrow.words() + 3 * SHADOW + 34


class _Rows:
    """Walks the program and gives every item the next row."""

    def __init__(self, cut: Fragments, layout: Layout) -> None:
        self._cut, self._layout, self._y = cut, layout, layout.start
        self._places: Places = cut.places()
        self._moved: dict[int, list[Traffic]] = {}
        for one in traffic(cut):
            self._moved.setdefault(one.position, []).append(one)

    def place(self) -> float:
        """Place everything; return where the last row ends."""
        self._scope(self._cut.graph.root, -1)
        return self._y

    def _scope(self, scope: Scope, depth: int) -> None:
        for item in scope.body:
            if isinstance(item, Scope):
                self._band(item, depth + 1)
                self._messages(self._places.positions[item.index], depth + 1)
            else:
                self._node(item, depth + 1)
                self._messages(self._places.positions[item.output], depth + 1)

    def _band(self, scope: Scope, depth: int) -> None:
        inside = [c for c in self._layout.columns.values() if self._places.takes_part(c.name, scope)]
        bands = [Band(column, depth, f"{scope.name} {TIMES} {scope.trips}", self._y) for column in inside]
        self._layout.bands += bands
        self._y += ROW + 8
        self._scope(scope, depth)
        for band in bands:
            band.height = self._y - band.y
        self._y += GAP

    def _node(self, node: Node, depth: int) -> None:
        column = self._layout.columns[self._cut.owner[node.name]]
        self._layout.marks.append(Mark(column, depth, node.role, node.name, str(node.source), self._y))
        self._y += HEADER + 8

    def _messages(self, position: int, depth: int) -> None:
        for one in self._moved.get(position, ()):
            source, target = self._layout.columns[one.source], self._layout.columns[one.target]
            amount = f"{size(one.size)} {TIMES} {one.times}"
            if source is target:
                words = f"averaged by all {source.replicas}, {amount}"
                self._layout.marks.append(Mark(source, depth, "all-reduce", one.how, words, self._y))
                self._y += HEADER + 8
                continue
            lines = wrap(", ".join(one.parts), "", PARTS)
            below = lines if len(lines) <= MOST else [*lines[: MOST - 1], lines[MOST - 1] + " …"]
            self._y += ROW
            self._layout.arrows.append(Arrow(source, target, f"{one.how}  {amount}", below, self._y))
            self._y += ROW * len(below) + 8
