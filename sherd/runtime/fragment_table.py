"""The fragments of a run for a person: a small table under the panel, or one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import OverflowMethod
from rich.table import Table
from rich.text import Text

from sherd.runtime.status import FragmentStatus

_BAR_WIDTH = 8
# Shapes as well as colours, so that the parts can be told apart without colours.
_PARTS = (("busy", "█", "#", "green"), ("waiting", "░", ".", "yellow"), ("sending", "▒", "+", "magenta"))
_SHARES = (("busy", "green"), ("wait", "yellow"), ("send", "magenta"))
_ROOM_FOR_BAR = 76  # columns of the terminal below which the bar is left out


def fragment_table(statuses: Sequence[FragmentStatus], ascii_only: bool = False, width: int = 80) -> Table:
    """A line for each fragment: how fast, where its time goes, and what is wrong with it."""
    overflow: OverflowMethod = "crop" if ascii_only else "ellipsis"
    with_bar = width >= _ROOM_FOR_BAR
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    # Where the terminal is narrow, names give way before numbers do.
    table.add_column("fragment", min_width=8, overflow=overflow)
    table.add_column("speed", justify="right", no_wrap=True, overflow=overflow)
    if with_bar:
        table.add_column("", no_wrap=True)
    for heading, colour in _SHARES:
        table.add_column(Text(heading, style=colour), justify="right", no_wrap=True, overflow=overflow)
    for heading in ("queue", "restarts", "age"):
        table.add_column(heading, justify="right", no_wrap=True, overflow=overflow)
    for status in statuses:
        bar = [_bar(status, ascii_only)] if with_bar else []
        name = Text(_name(status), style="cyan", no_wrap=True, overflow=overflow)
        table.add_row(name, Text(_speed(status)), *bar, *_numbers(status))
    return table


def _numbers(status: FragmentStatus) -> list[Text]:
    shares = (status.busy, status.waiting, status.sending, status.queue)
    restarts = Text(str(status.restarts), style="bold red" if status.restarts else "")
    return [*(Text(percent(share)) for share in shares), restarts, Text(_age(status.staleness))]


def fragments_line(statuses: Sequence[FragmentStatus]) -> str:
    """All fragments in one line of text.

    >>> actors = FragmentStatus("actors", "actor", 2, 12_345.6, "steps/s", 0.81, 0.12, 0.07)
    >>> learner = FragmentStatus("learner", "learner", 1, 6.0, "updates/s", 0.3, 0.7, 0.0, 0.25, 0, 1.5)
    >>> for part in fragments_line([actors, learner]).split(" | "):
    ...     print(part)
    fragments: actors x2 12.3k steps/s busy 81% wait 12% send 7% restarts 0
    learner 6 updates/s busy 30% wait 70% send 0% queue 25% restarts 0 age 1.5
    """
    return "fragments: " + " | ".join(_line(status) for status in statuses)


def _line(status: FragmentStatus) -> str:
    parts = [_name(status), _speed(status)]
    parts += [
        f"busy {percent(status.busy)}",
        f"wait {percent(status.waiting)}",
        f"send {percent(status.sending)}",
    ]
    if status.queue is not None:
        parts.append(f"queue {percent(status.queue)}")
    parts.append(f"restarts {status.restarts}")
    if status.staleness is not None:
        parts.append(f"age {_age(status.staleness)}")
    return " ".join(parts)


def short_number(value: float) -> str:
    """A number in at most five characters, for tables.

    >>> [short_number(value) for value in (0, 0.254, 7.25, 48.6, 999.7, 12_345, 999_960, float("nan"))]
    ['0', '0.25', '7.2', '49', '1.0k', '12.3k', '1.0M', '-']
    """
    if not math.isfinite(value):
        return "-"
    if abs(value) < 999.5:
        return f"{value:.2g}" if abs(value) < 10 else f"{value:.0f}"
    for unit in "kMG":
        value /= 1000
        if abs(value) < 999.95 or unit == "G":
            break
    return f"{value:.1f}{unit}"


def percent(share: float | None) -> str:
    """A share as whole per cent; a dash for what is not known.

    >>> percent(0.814), percent(None)
    ('81%', '-')
    """
    return f"{100 * share:.0f}%" if share is not None and math.isfinite(share) else "-"


def _name(status: FragmentStatus) -> str:
    return status.name if status.replicas == 1 else f"{status.name} x{status.replicas}"


def _speed(status: FragmentStatus) -> str:
    return f"{short_number(status.per_second)} {status.unit}"


def _age(staleness: float | None) -> str:
    return short_number(staleness) if staleness is not None else "-"


def _bar(status: FragmentStatus, ascii_only: bool) -> Text:
    """Busy, waiting and sending side by side; what is left of the time stays blank."""
    bar, total, drawn = Text(), 0.0, 0
    for part, shape, ascii_shape, colour in _PARTS:
        share = getattr(status, part)
        total += min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
        end = min(round(_BAR_WIDTH * total), _BAR_WIDTH)  # ends are rounded, not lengths: they always add up
        bar.append((ascii_shape if ascii_only else shape) * (end - drawn), style=colour)
        drawn = end
    bar.pad_right(_BAR_WIDTH - drawn)
    return bar
