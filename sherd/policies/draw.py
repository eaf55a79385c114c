"""A cut as a drawing: fragments side by side with their nodes in them, messages as arrows between them."""

from __future__ import annotations

from sherd.graph.draw_layout import HEADER, INSET, LETTER, MARGIN, ROW
from sherd.graph.draw_svg import ROLES, SANS, document, rect, text
from sherd.policies.draw_layout import SHADOW, TOP, Arrow, Band, Column, Layout, Mark, lay_out
from sherd.policies.partition import Fragments
from sherd.policies.text import describe_policy
from sherd.policies.traffic import size, traffic

_LEGEND = (
    "Time runs down. An arrow is a message: its manner, its bytes \N{MULTIPLICATION SIGN} how often it is "
    "sent in an iteration, its parts."
)
_INK, _FAINT, _LINE = "#1b2027", "#5b6470", "#3b4350"


def draw_cut(cut: Fragments) -> str:
    """The cut as an SVG document.

    >>> from sherd.algorithms.ppo import PPO
    >>> from sherd.envs import describe
    >>> from sherd.graph import trace
    >>> from sherd.policies import load_policy
    >>> from sherd.policies.partition import partition
    >>> cut = partition(trace(PPO(), describe("CartPole-v1"), 8), load_policy("SingleLearnerCoarse")())
    >>> draw_cut(cut)[:38]
    '<svg xmlns="http://www.w3.org/2000/svg'
    """
    layout = lay_out(cut)
    parts = [*_heading(cut), *(_column(layout, column) for column in layout.columns.values())]
    parts += [_band(band) for band in layout.bands]
    parts += [_arrow(arrow) for arrow in layout.arrows]
    parts += [_mark(mark) for mark in layout.marks]
    title = f"{cut.graph.name} under {cut.policy.name}"
    return document((layout.right + MARGIN, layout.bottom + MARGIN + 2 * SHADOW), title, parts)


def _heading(cut: Fragments) -> list[str]:
    graph, moved = cut.graph, traffic(cut)
    amount = size(sum(one.per_iteration for one in moved))
    crossing = f"{amount} in {sum(one.times for one in moved):,} messages" if moved else "no messages"
    under = f"{graph.name} on {graph.spec.id}, {graph.envs} environments; an iteration: "
    big = f'font-family="{SANS}" font-size="20" font-weight="700" fill="{_INK}"'
    small = f'font-family="{SANS}" font-size="12" fill="{_FAINT}"'
    found = [text(MARGIN, 34, cut.policy.name, big)]
    settings = describe_policy(cut.policy).removeprefix(cut.policy.name).strip("()")
    found.append(text(MARGIN + 14 * len(cut.policy.name), 34, settings, f'font-size="11" fill="{_FAINT}"'))
    steps = f"{graph.steps_per_iteration():,} steps, {crossing}"
    legend = text(MARGIN, 96, _LEGEND, small.replace('"12"', '"11"'))
    return [*found, text(MARGIN, 54, under + steps, small), *_roles(cut), legend]


def _roles(cut: Fragments) -> list[str]:
    x, parts = MARGIN, []
    for role in dict.fromkeys(node.role for node in cut.graph.nodes()):
        strong, pale = ROLES[role]
        parts.append(rect((x, 65, 12, 12), f'rx="3" fill="{pale}" stroke="{strong}"'))
        parts.append(text(x + 17, 75, role, f'fill="{strong}"'))
        x += 17 + LETTER * len(role) + 16
    return parts


def _column(layout: Layout, column: Column) -> str:
    """A fragment; replicas are a pile of them."""
    place = (column.x, TOP, column.width, layout.bottom - TOP)
    parts = []
    for behind in range(min(column.replicas, 3) - 1, -1, -1):
        shifted = (place[0] + SHADOW * behind, place[1] + SHADOW * behind, *place[2:])
        parts.append(rect(shifted, f'rx="9" fill="#fafbfc" stroke="{_LINE}" stroke-width="1.3"'))
    y = TOP + 20
    kind = column.x + 12 + LETTER * 1.3 * (len(column.title) + 1)
    parts.append(text(column.x + 12, y, column.title, f'font-size="14" font-weight="700" fill="{_INK}"'))
    parts.append(text(kind, y, column.kind, f'fill="{_FAINT}"'))
    notes = [
        text(column.x + 12, y + ROW * (i + 1), n, f'fill="{_FAINT}"') for i, n in enumerate(column.notes)
    ]
    return "\n".join([*parts, *notes])


def _band(band: Band) -> str:
    inset = INSET * (band.depth + 0.6)
    place = (band.column.x + inset, band.y, band.column.width - 2 * inset, band.height)
    fill = ("#f1f4f8", "#e7ecf2", "#dde4ec")[min(band.depth, 2)]
    words = text(place[0] + 8, band.y + 15, band.title, f'font-size="12" font-weight="700" fill="{_INK}"')
    return rect(place, f'rx="7" fill="{fill}" stroke="#aab4c0"') + "\n" + words


def _mark(mark: Mark) -> str:
    inset = INSET * (mark.depth + 1)
    x, width = mark.column.x + inset, mark.column.width - 2 * inset
    strong, pale = ROLES.get(mark.role, ROLES["grad"])
    dashed = ' stroke-dasharray="4 3"' if mark.role == "all-reduce" else ""
    fill = "#ffffff" if dashed else pale
    weight = f'font-size="12.5" font-weight="700" fill="{strong}"'
    note = x + width - 8 - LETTER * len(mark.note)
    return "\n".join(
        [
            rect((x, mark.y, width, HEADER), f'rx="6" fill="{fill}" stroke="{strong}"{dashed}'),
            text(x + 9, mark.y + 16, mark.title, weight),
            text(note, mark.y + 16, mark.note, f'fill="{_FAINT}"'),
        ]
    )


def _arrow(arrow: Arrow) -> str:
    """From edge to edge, with its text beside the sender."""
    source, target, y = arrow.source, arrow.target, arrow.y
    rightward = target.x > source.x
    start = source.x + source.width + _pile(source) if rightward else source.x
    end = target.x if rightward else target.x + target.width + _pile(target)
    words = start + 12 if rightward else start - 12 - arrow.words()
    back = end - 8 if rightward else end + 8
    below = [text(words, y + 13 + ROW * i, line, f'fill="{_FAINT}"') for i, line in enumerate(arrow.below)]
    return "\n".join(
        [
            f'<path d="M{start:.1f} {y:.1f}H{end:.1f}" stroke="{_LINE}" stroke-width="1.5"/>',
            f'<circle cx="{start:.1f}" cy="{y:.1f}" r="2.8" fill="{_LINE}"/>',
            f'<path d="M{end:.1f} {y:.1f}L{back:.1f} {y - 4:.1f}V{y + 4:.1f}Z" fill="{_LINE}"/>',
            text(words, y - 5, arrow.above, f'font-weight="700" fill="{_INK}"'),
            *below,
        ]
    )


def _pile(column: Column) -> float:
    return SHADOW * (min(column.replicas, 3) - 1)
