"""The graph as a drawing: SVG that any browser shows, built from strings.

It reads like a sequence diagram. State cells are at the top, each with a line that runs down on the left;
an arrow from a line into a box reads the cell, an arrow from a box to a line writes it, and a dashed arrow
back up along a line carries it into a scope's next turn. Values run on the right, from the row of the box
that makes them to the boxes that use them. Scopes are the frames around.
"""

from __future__ import annotations

from html import escape

from sherd.graph.draw_layout import HEADER, INSET, LETTER, MARGIN, ROW, Layout, Wire, lay_out
from sherd.graph.draw_model import Box, Frame, boxes, diagram, frames
from sherd.graph.ir import Graph

_ROLES = {
    "env": ("#2e7d4f", "#e3f3e8"),
    "act": ("#1f6fb2", "#e1eefa"),
    "learn": ("#6a4fb3", "#ece7f8"),
    "grad": ("#b8641a", "#fbebda"),
    "apply": ("#b3364a", "#fae2e5"),
    "replay": ("#0f7c80", "#dbf1f1"),
    "eval": ("#6b6f2b", "#f1f2d8"),
    "stack": ("#5b6470", "#eceff2"),
    "report": ("#5b6470", "#eceff2"),
    "turn": ("#5b6470", "#eceff2"),
    "given": ("#5b6470", "#f5f6f8"),
    "cell": ("#3b4350", "#fdf6dc"),
}
_LINES = ("#3f8f5f", "#c2571a", "#3b78c4", "#8a56b8", "#b58900", "#b3364a", "#0f7c80", "#7a5c3e", "#5b6470")
_FONT = "ui-monospace,'SF Mono',Menlo,'DejaVu Sans Mono',Consolas,monospace"
_SANS = "system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif"


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
    parts += [_line(layout, index) for index in range(len(layout.diagram.cells))]
    parts += [_loops(layout), *(_wire(wire) for wire in layout.wires), *(_box(layout, box) for box in every)]
    width, height = layout.size[0] + MARGIN, layout.size[1] + MARGIN
    width = max(width, 560.0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="{_FONT}" font-size="11">\n'
        f"<title>{escape(layout.diagram.title)}</title>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve" {style}>{escape(text)}</text>'


def _heading(layout: Layout) -> str:
    shown = layout.diagram
    parts = [
        _text(MARGIN, 34, shown.title, f'font-family="{_SANS}" font-size="20" font-weight="700" fill="#1b2027"'),
        _text(MARGIN, 54, shown.subtitle, f'font-family="{_SANS}" font-size="12" fill="#5b6470"'),
    ]
    x = MARGIN
    for role in shown.roles:
        strong, pale = _ROLES[role]
        parts.append(f'<rect x="{x:.1f}" y="65" width="12" height="12" rx="3" fill="{pale}" stroke="{strong}"/>')
        parts.append(_text(x + 17, 75, role, f'fill="{strong}"'))
        x += 17 + LETTER * len(role) + 16
    words = "arrow from a line: reads state   to a line: writes it   dashed: into the next turn"
    parts.append(_text(x + 4, 75, words, 'fill="#5b6470"'))
    if shown.empty:
        y = shown.cells[-1].y + shown.cells[-1].height + 16
        parts.append(_text(layout.left, y, f"empty state: {', '.join(shown.empty)}", 'fill="#8a929c"'))
    return "\n".join(parts)


def _frame(layout: Layout, frame: Frame) -> str:
    x = MARGIN + frame.depth * INSET
    fill = ("#fafbfc", "#f3f5f8", "#eaeef3", "#e1e7ee")[min(frame.depth, 3)]
    source_x = layout.left + layout.width - LETTER * len(frame.source) - 8
    return "\n".join(
        [
            f'<rect x="{x:.1f}" y="{frame.y:.1f}" width="{frame.right - x:.1f}" height="{frame.height:.1f}" rx="10" '
            f'fill="{fill}" stroke="#aab4c0"/>',
            _text(layout.left, frame.y + 20, frame.title, 'font-size="13" font-weight="700" fill="#1b2027"'),
            _text(source_x, frame.y + 20, frame.source, 'fill="#8a929c"'),
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
        parts.append(f'<path d="M{x:.1f} {row.y:.1f}H{layout.left:.1f}" stroke="{colour}" stroke-width="1.2"/>')
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
            away = x - 6.0 - 5.0 * (deepest - frame.depth)
            top, bottom = frame.y + 10, frame.y + frame.height - 8
            parts.append(
                f'<path d="M{x:.1f} {bottom:.1f}H{away + 3:.1f}Q{away:.1f} {bottom:.1f} {away:.1f} {bottom - 3:.1f}'
                f'V{top + 3:.1f}Q{away:.1f} {top:.1f} {away + 3:.1f} {top:.1f}H{x:.1f}" fill="none" '
                f'stroke="{colour}" stroke-dasharray="3 2.5"/>'
            )
            parts.append(_arrow(x - 0.5, top, "right", colour))
    return "\n".join(parts)


def _wire(wire: Wire) -> str:
    colour = _ROLES[wire.role][0]
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
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.3" stroke-linecap="round"/>\n' + "\n".join(
        parts
    )


def _arrow(x: float, y: float, way: str, colour: str) -> str:
    back = x - 7 if way == "right" else x + 7
    return f'<path d="M{x:.1f} {y:.1f}L{back:.1f} {y - 3.6:.1f}V{y + 3.6:.1f}Z" fill="{colour}"/>'


def _box(layout: Layout, box: Box) -> str:
    x, width = layout.left, layout.width
    strong, pale = _ROLES[box.kind]
    outline = f'x="{x:.1f}" y="{box.y:.1f}" width="{width:.1f}" height="{box.height:.1f}" rx="6"'
    parts = [
        f"<g><title>{escape(box.title + (': ' + box.hint if box.hint else ''))}</title>",
        f'<rect {outline} fill="#ffffff"/>',
        f'<path d="M{x:.1f} {box.y + HEADER:.1f}v{-(HEADER - 6):.1f}q0 -6 6 -6h{width - 12:.1f}q6 0 6 6v{HEADER - 6:.1f}z" '
        f'fill="{pale}"/>',
        f'<rect {outline} fill="none" stroke="{strong}" stroke-width="1.2"/>',
        _text(x + 10, box.y + 16, box.title, f'font-size="12.5" font-weight="700" fill="{strong}"'),
        _text(x + 10 + LETTER * 1.14 * (len(box.title) + 1.5), box.y + 16, box.note, 'fill="#5b6470"'),
        _text(x + width - 8 - LETTER * len(box.source), box.y + 16, box.source, 'fill="#5b6470"'),
    ]
    for row in box.rows:
        if row.rule:
            parts.append(
                f'<path d="M{x:.1f} {row.y - ROW / 2:.1f}h{width:.1f}" stroke="{strong}" stroke-opacity=".25"/>'
            )
        parts.append(_text(x + 10, row.y + 4, row.left, 'fill="#1b2027"'))
        if row.right:
            parts.append(_text(x + width - 10 - LETTER * len(row.right), row.y + 4, row.right, 'fill="#1b2027"'))
    return "\n".join([*parts, "</g>"])
