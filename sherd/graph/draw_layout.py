"""Where everything in a drawing goes.

Boxes stand in one column, in the order of the program. Left of it every state cell has a vertical line,
right of it every value has a lane. A lane belongs to the innermost frame that holds all its ends, so wires
leave a frame only where a value does. Nothing overlaps by construction: texts are inside boxes whose width
is that of the longest, and wires that share a lane do not meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sherd.graph.draw_model import Box, Diagram, Frame, Net, boxes, frames

LETTER = 6.65  # width of a letter at the size of a row, in any common monospaced font
ROW, HEADER, GAP, PAD = 17.0, 24.0, 14.0, 12.0
MARGIN, TOP, LANE, INSET = 20.0, 112.0, 13.0, 10.0
FRAME_HEADER, LOOP = 30.0, 5.0  # LOOP is the distance between arrows into the next turn


@dataclass
class Wire:
    """A net: from the producer's right edge into a lane and from there to its users."""

    net: Net
    start: tuple[float, float]
    ends: list[tuple[float, float]] = field(default_factory=list)
    role: str = ""
    lane: float = 0

    def span(self) -> tuple[float, float]:
        """The heights between which it runs in its lane."""
        heights = [self.start[1], *(y for _, y in self.ends)]
        return min(heights), max(heights)


@dataclass
class Layout:
    """A diagram in which everything has its place."""

    diagram: Diagram
    lines: dict[str, float]
    left: float
    width: float
    wires: list[Wire]
    size: tuple[float, float]


def lay_out(diagram: Diagram) -> Layout:
    """Give everything its place."""
    every = [*diagram.cells, *boxes(diagram.root)]
    width = max(_box_width(box) for box in every)
    depth = _depth(diagram.root, 0)
    spacing = 20.0 + (LOOP + 1) * depth
    first = MARGIN + depth * (INSET + LOOP) + 18
    lines = {box.title: first + spacing * index for index, box in enumerate(diagram.cells)}
    left = first + spacing * len(diagram.cells) + 6
    y = TOP
    for box in diagram.cells:
        y = _place_box(box, y) + 8
    y += 22 if diagram.empty else 6
    bottom = _place_frame(diagram.root, y)
    wires = _wires(diagram.root, left + width)
    right = _lanes(diagram.root, wires, left + width)
    return Layout(
        diagram, lines, left, width, [w for group in wires.values() for w in group], (right, bottom)
    )


def _box_width(box: Box) -> float:
    header = len(box.title) * 1.12 + len(box.note) + len(box.source) + 8
    longest = max([len(r.left) + (len(r.right) + 3 if r.right else 0) for r in box.rows], default=0)
    return max(header, longest + 4) * LETTER


def _depth(frame: Frame, depth: int) -> int:
    """Number the frames by how deep they are nested; return the deepest."""
    frame.depth = depth
    return max([depth, *(_depth(item, depth + 1) for item in frame.items if isinstance(item, Frame))])


def _place_box(box: Box, y: float) -> float:
    box.y, box.height = y, HEADER + ROW * len(box.rows) + (6 if box.rows else 0)
    for index, row in enumerate(box.rows):
        row.y = y + HEADER + 3 + ROW * (index + 0.5)
    return y + box.height


def _place_frame(frame: Frame, y: float) -> float:
    frame.y = y
    y += FRAME_HEADER
    for item in frame.items:
        y = (_place_frame(item, y) if isinstance(item, Frame) else _place_box(item, y)) + GAP
    frame.height = y + PAD - GAP + 6 - frame.y
    return frame.y + frame.height


def _wires(root: Frame, right: float) -> dict[int, list[Wire]]:
    """The wires of each frame, by the frame's identity."""
    starts: dict[Net, tuple[float, str, list[Frame]]] = {}
    ends: dict[Net, list[tuple[float, list[Frame]]]] = {}

    def visit(frame: Frame, path: list[Frame]) -> None:
        if frame.turn is not None:
            starts[frame.turn] = (frame.y, "turn", path)
        for item in frame.items:
            if isinstance(item, Frame):
                visit(item, [*path, item])
                continue
            for row in item.rows:
                if row.net is not None and row.net_out:
                    starts[row.net] = (row.y, item.kind, path)
                elif row.net is not None:
                    ends.setdefault(row.net, []).append((row.y, path))

    visit(root, [root])
    found: dict[int, list[Wire]] = {id(frame): [] for frame in frames(root)}
    for net, (y, role, path) in starts.items():
        if net in ends:
            paths = [path, *(other for _, other in ends[net])]
            shared = [same[0] for same in zip(*paths) if all(one is same[0] for one in same)]
            wire = Wire(net, (right, y), [(right, end) for end, _ in ends[net]], role)
            found[id(shared[-1])].append(wire)
    return found


def _lanes(frame: Frame, wires: dict[int, list[Wire]], right: float) -> float:
    """Give every wire of a frame a lane, short ones nearest; return the frame's right edge."""
    inner = [_lanes(item, wires, right) for item in frame.items if isinstance(item, Frame)]
    edge = max([right, *inner])
    lanes: list[list[Wire]] = []
    for wire in sorted(wires[id(frame)], key=lambda w: (w.span()[1] - w.span()[0], w.net[0])):
        low, high = wire.span()
        free = (lane for lane in lanes if all(high + 8 < o.span()[0] or low - 8 > o.span()[1] for o in lane))
        lane = next(free, None)
        if lane is None:
            lane = []
            lanes.append(lane)
        lane.append(wire)
        wire.lane = edge + 16 + LANE * lanes.index(lane)
    frame.right = edge + 16 + LANE * len(lanes) + (2 if lanes else 0)
    return frame.right
