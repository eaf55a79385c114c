"""The graph as a drawing: SVG that any browser shows, built from strings.

It reads like a sequence diagram. State cells are at the top, each with a line that runs down on the left;
an arrow from a line into a box reads the cell, an arrow from a box to a line writes it, and a dashed arrow
back up along a line carries it into a scope's next turn. Values run on the right, from the row of the box
that makes them to the boxes that use them. Scopes are the frames around.
"""

from __future__ import annotations

from html import escape

from sherd.graph.draw_layout import HEADER, INSET, LETTER, LOOP, MARGIN, ROW, Layout, Wire, lay_out
from sherd.graph.draw_model import Box, Frame, Row, boxes, diagram, frames
from sherd.graph.draw_svg import ROLES, SANS, document, rect, text
from sherd.graph.ir import Graph

_LINES = ("#3f8f5f", "#c2571a", "#3b78c4", "#8a56b8", "#b58900", "#b3364a", "#0f7c80", "#7a5c3e", "#5b6470")
_LEGEND = (
    "Left: each state cell has a line; → reads it, ← writes it, dashed carries it into the next turn. "
    "Right: values, from maker to users."
)


def draw(graph: Graph) -> str:
    """The graph as an SVG document.

    >>> from sherd.algorithms.ppo import PPO
    >>> from sherd.envs import describe
    >>> from sherd.graph.trace import trace
    >>> draw(trace(PPO(), describe("CartPole-v1"), envs=8))[:38]
    '<svg xmlns="http://www.w3.org/2000/svg'
    """
    layout = lay_out(diagram(graph))
    every = [*layout.diagram.cells, *boxes(layout.diagram.root)]
    parts = [_heading(layout), *(_frame(layout, frame) for frame in frames(layout.diagram.root))]
    parts += [_box(layout, box) for box in every]
    parts += [_line(layout, index) for index in range(len(layout.diagram.cells))]
    parts += [_loops(layout), *(_wire(wire) for wire in layout.wires)]
    width, height = layout.size[0] + MARGIN, layout.size[1] + MARGIN
    width = max(width, 760.0)  # the legend's
    return document((width, height), layout.diagram.title, parts)


def _heading(layout: Layout) -> str:
    shown = layout.diagram
    parts = [
        text(
            MARGIN, 34, shown.title, f'font-family="{SANS}" font-size="20" font-weight="700" fill="#1b2027"'
        ),
        text(MARGIN, 54, shown.subtitle, f'font-family="{SANS}" font-size="12" fill="#5b6470"'),
    ]
    x = MARGIN
    for role in shown.roles:
        strong, pale = ROLES[role]
        parts.append(
            f'<rect x="{x:.1f}" y="65" width="12" height="12" rx="3" fill="{pale}" stroke="{strong}"/>'
        )
        parts.append(text(x + 17, 75, role, f'fill="{strong}"'))
        x += 17 + LETTER * len(role) + 16
    parts.append(text(MARGIN, 96, _LEGEND, f'font-family="{SANS}" font-size="11" fill="#5b6470"'))
    if shown.empty:
        y = shown.cells[-1].y + shown.cells[-1].height + 16
        parts.append(text(layout.left, y, f"empty state: {', '.join(shown.empty)}", 'fill="#8a929c"'))
    return "\n".join(parts)


def _frame(layout: Layout, frame: Frame) -> str:
    x = MARGIN + frame.depth * INSET
    fill = ("#fafbfc", "#f3f5f8", "#eaeef3", "#e1e7ee")[min(frame.depth, 3)]
    source_x = layout.left + layout.width - LETTER * len(frame.source) - 8
    return "\n".join(
        [
            rect((x, frame.y, frame.right - x, frame.height), f'rx="10" fill="{fill}" stroke="#aab4c0"'),
            text(layout.left, frame.y + 20, frame.title, 'font-size="13" font-weight="700" fill="#1b2027"'),
            text(source_x, frame.y + 20, frame.source, 'fill="#8a929c"'),
        ]
    )


def _colour(layout: Layout, cell: str) -> str:
    return _LINES[list(layout.lines).index(cell) % len(_LINES)]


def _line(layout: Layout, index: int) -> str:
    """The line of a state cell, with every arrow from and to it."""
    box = layout.diagram.cells[index]
    cell, x, start = box.title, layout.lines[box.title], box.y + HEADER / 2
    colour = _colour(layout, cell)
    rows = [row for other in boxes(layout.diagram.root) for row in other.rows if row.cell == cell]
    changed = cell in layout.diagram.root.carried
    end = layout.size[1] - 8 if changed else max([row.y for row in rows], default=start)
    parts = [
        f'<path d="M{layout.left:.1f} {start:.1f}H{x:.1f}V{end:.1f}" fill="none" stroke="{colour}" '
        'stroke-width="1.8" stroke-linejoin="round"/>'
    ]
    for row in rows:
        parts.append(
            f'<path d="M{x:.1f} {row.y:.1f}H{layout.left:.1f}" stroke="{colour}" stroke-width="1.2"/>'
        )
        if row.cell_out:
            parts.append(_arrow(x + 1, row.y, "left", colour))
        else:
            parts.append(f'<circle cx="{x:.1f}" cy="{row.y:.1f}" r="2.6" fill="{colour}"/>')
            parts.append(_arrow(layout.left, row.y, "right", colour))
    return "\n".join(parts)


def _loops(layout: Layout) -> str:
    """A dashed arrow back to the top of every scope, for each cell that it carries."""
    parts = []
    deepest = max(frame.depth for frame in frames(layout.diagram.root))
    for frame in frames(layout.diagram.root):
        for cell in frame.carried:
            x, colour = layout.lines[cell], _colour(layout, cell)
            away = x - 6.0 - LOOP * (deepest - frame.depth)
            top, bottom = frame.y + 10, frame.y + frame.height - 8
            path = f"M{x:.1f} {bottom:.1f}H{away:.1f}V{top:.1f}H{x:.1f}"
            style = 'fill="none" stroke-dasharray="3 2.5" stroke-linejoin="round"'
            parts.append(f'<path d="{path}" stroke="{colour}" {style}/>')
            parts.append(_arrow(x - 0.5, top, "right", colour))
    return "\n".join(parts)


def _wire(wire: Wire) -> str:
    colour = ROLES[wire.role][0]
    low, high = wire.span()
    x, y = wire.start
    if wire.role == "turn":
        path = f"M{wire.lane:.1f} {low:.1f}V{high:.1f}"
    else:
        path = f"M{x:.1f} {y:.1f}H{wire.lane:.1f}M{wire.lane:.1f} {low:.1f}V{high:.1f}"
    parts = []
    for end_x, end_y in wire.ends:
        path += f"M{wire.lane:.1f} {end_y:.1f}H{end_x:.1f}"
        parts.append(_arrow(end_x, end_y, "left", colour))
    origin = wire.lane if wire.role == "turn" else x
    parts.append(f'<circle cx="{origin:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>')
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.3" stroke-linecap="round"/>\n'
        + "\n".join(parts)
    )


def _arrow(x: float, y: float, way: str, colour: str) -> str:
    back = x - 7 if way == "right" else x + 7
    return f'<path d="M{x:.1f} {y:.1f}L{back:.1f} {y - 3.6:.1f}V{y + 3.6:.1f}Z" fill="{colour}"/>'


def _box(layout: Layout, box: Box) -> str:
    x, width = layout.left, layout.width
    strong, pale = ROLES[box.kind]
    if box.kind in ("cell", "given"):
        strong = _colour(layout, box.title)
    hint = f"{box.title}: {box.hint}" if box.hint else box.title
    place = (x, box.y, width, box.height)
    under = HEADER - 6
    header = f"M{x:.1f} {box.y + HEADER:.1f}v{-under:.1f}q0 -6 6 -6h{width - 12:.1f}q6 0 6 6v{under:.1f}z"
    note = x + 10 + LETTER * 1.14 * (len(box.title) + 1.5)  # titles are set 1.14 times as wide
    parts = [
        f"<g><title>{escape(hint)}</title>",
        rect(place, 'rx="6" fill="#ffffff"'),
        f'<path d="{header}" fill="{pale}"/>',
        rect(place, f'rx="6" fill="none" stroke="{strong}" stroke-width="1.2"'),
        text(x + 10, box.y + 16, box.title, f'font-size="12.5" font-weight="700" fill="{strong}"'),
        text(note, box.y + 16, box.note, 'fill="#5b6470"'),
        text(x + width - 8 - LETTER * len(box.source), box.y + 16, box.source, 'fill="#5b6470"'),
    ]
    return "\n".join([*parts, *(_row(layout, row, strong) for row in box.rows), "</g>"])


def _row(layout: Layout, row: Row, colour: str) -> str:
    x, width = layout.left, layout.width
    parts = []
    if row.rule:
        path = f"M{x:.1f} {row.y - ROW / 2:.1f}h{width:.1f}"
        parts.append(f'<path d="{path}" stroke="{colour}" stroke-opacity=".25"/>')
    if row.left:
        parts.append(text(x + 10, row.y + 4, row.left, 'fill="#1b2027"'))
    if row.right:
        parts.append(text(x + width - 10 - LETTER * len(row.right), row.y + 4, row.right, 'fill="#1b2027"'))
    return "\n".join(parts)
