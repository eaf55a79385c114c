"""What a run's rows so far amount to, as a line of text or as a panel.

Training adds rows while another thread draws. Every attribute that drawing reads is therefore replaced as a
whole, never changed in place.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sherd.runtime.events import Row, RunInfo, number
from sherd.runtime.fragment_table import fragment_table
from sherd.runtime.status import FragmentStatus

_RECENT_EPISODES = 100
_SPARKS, _ASCII_SPARKS = "▁▂▃▄▅▆▇█", "_.-~=+*#"
_SPARKLINE_WIDTH = 32
# These have their own place in the panel; whatever else a row holds goes to the table.
_PLACED = {
    "iteration",
    "steps",
    "seconds",
    "steps_per_second",
    "episode_return",
    "episode_length",
    "episodes",
}


class Progress:
    """What the rows so far amount to, as a line or as a panel."""

    def __init__(self, info: RunInfo, clock: Callable[[], float]) -> None:
        self._info = info
        self._clock = clock
        self._started = clock()
        self._row: Row = {}
        self._loss = ("loss", math.nan)
        self._statuses: tuple[FragmentStatus, ...] = ()
        self._first: tuple[float, float] | None = None
        self._latest = (self._started, 0.0)
        self._episode_return = _RecentMean(_RECENT_EPISODES)
        self._episode_length = _RecentMean(_RECENT_EPISODES)
        self._history = _History(2 * _SPARKLINE_WIDTH)

    def add(self, row: Row) -> None:
        """Take in one row, whatever it lacks."""
        self._row = row
        self._loss = _known_loss(row, self._loss)
        steps = number(row.get("steps"))
        if math.isfinite(steps):
            self._latest = (self._clock(), steps)
            self._first = self._first or self._latest
        episodes = number(row.get("episodes", 1))
        if self._episode_return.add(number(row.get("episode_return")), episodes):
            self._history.add(self._episode_return.value)
        self._episode_length.add(number(row.get("episode_length")), episodes)

    def fragments(self, statuses: Sequence[FragmentStatus]) -> None:
        """Take in the newest picture of the fragments."""
        self._statuses = tuple(statuses)

    def line(self) -> str:
        """The state of the run in one line of text."""
        return "  ".join(
            (
                f"steps {self._steps()}",
                f"{math.floor(100 * self._fraction())}%",
                f"{self._rate()} steps/s",
                f"return {format_number(self._episode_return.value)}",
                f"{self._loss[0]} {format_number(self._loss[1])}",
                f"elapsed {format_time(self._elapsed())}",
                f"left {format_time(self._remaining())}",
            )
        )

    def panel(self, ascii_only: bool = False, width: int = 80) -> RenderableType:
        """The state of the run as a panel."""
        parts: list[RenderableType] = [self._bar(), self._speed(), self._episodes(ascii_only)]
        if not self._row:
            parts.append(Text("the first iteration compiles", style="dim"))
        table = {
            name: format_number(number(value)) for name, value in self._row.items() if name not in _PLACED
        }
        if table:
            parts.append(pairs(table, columns=3))
        statuses = self._statuses
        if statuses:
            parts += [Text(), fragment_table(statuses, ascii_only, width)]
        return Panel(Group(*parts), title=Text(title(self._info)), title_align="left", border_style="blue")

    def _bar(self) -> RenderableType:
        bar = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, 1, None, None):
            bar.add_column(ratio=ratio, no_wrap=True)
        bar.add_row(
            f"{math.floor(100 * self._fraction()):3d}%",
            ProgressBar(1.0, self._fraction(), complete_style="cyan", finished_style="green"),
            f"elapsed {format_time(self._elapsed())}",
            f"left {format_time(self._remaining())}",
        )
        return bar

    def _speed(self) -> RenderableType:
        return Text(f"steps {self._steps()}   {self._rate()} steps/s", style="cyan")

    def _episodes(self, ascii_only: bool) -> RenderableType:
        return Text.assemble(
            ("return ", "dim"),
            (format_number(self._episode_return.value), "bold green"),
            f"  {sparkline(self._history.points, ascii_only=ascii_only)}  ",
            ("episode length ", "dim"),
            format_number(self._episode_length.value),
        )

    def _steps(self) -> str:
        return f"{self._latest[1]:,.0f}/{self._info.steps:,}"

    def _fraction(self) -> float:
        return min(max(self._latest[1] / self._info.steps, 0.0), 1.0) if self._info.steps > 0 else 1.0

    def _rate(self) -> str:
        rate = number(self._row.get("steps_per_second"))
        return f"{rate:,.0f}" if math.isfinite(rate) else "-"

    def _elapsed(self) -> float:
        return self._clock() - self._started

    def _remaining(self) -> float:
        """By the mean speed since the first row, which leaves compilation out; unknown before the second."""
        if self._first is None:
            return math.nan
        seconds = self._latest[0] - self._first[0]
        steps = self._latest[1] - self._first[1]
        rate = steps / seconds if seconds > 0 and steps > 0 else 0.0
        left = max(self._info.steps - self._latest[1], 0.0)
        return left / rate if rate > 0 else math.nan


def _known_loss(row: Row, before: tuple[str, float]) -> tuple[str, float]:
    """The loss, or of several optimisers the first one's; where nothing was learnt, the one before."""
    parts = (name for name in row if name.endswith("_loss") and f"{name[:-5]}_update_scale" in row)
    name = "loss" if "loss" in row else next(parts, "loss")
    loss = number(row.get(name))
    return (name, loss) if math.isfinite(loss) or name != before[0] else before


class _RecentMean:
    """The mean over at least the last `window` episodes, given iterations' means and counts."""

    def __init__(self, window: int) -> None:
        self.value = math.nan
        self._window = window
        self._parts: deque[tuple[float, float]] = deque()
        self._count = 0.0

    def add(self, mean: float, count: float) -> bool:
        """Take in one iteration; false if no episode ended in it."""
        if not math.isfinite(mean) or not count > 0:
            return False
        self._parts.append((mean, count))
        self._count += count
        while self._count - self._parts[0][1] >= self._window:
            self._count -= self._parts.popleft()[1]
        self.value = sum(part * weight for part, weight in self._parts) / self._count
        return True


class _History:
    """The whole course of a number in at most `size` points: when full, neighbours are merged."""

    def __init__(self, size: int) -> None:
        self.points: list[float] = []
        self._size = size
        self._stride = 1
        self._sum = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        """Take in one number."""
        self._sum += value
        self._count += 1
        if self._count < self._stride:
            return
        points = [*self.points, self._sum / self._count]
        self._sum, self._count = 0.0, 0
        if len(points) >= self._size:
            points = [(left + right) / 2 for left, right in zip(points[::2], points[1::2])]
            self._stride *= 2
        self.points = points


def title(info: RunInfo) -> str:
    """The run in one line."""
    plural = "" if info.envs == 1 else "s"
    return (
        f"{info.algorithm} on {info.env}  policy {info.policy} ({info.executor})  seed {info.seed}"
        f"  {info.envs} environment{plural}"
    )


def sparkline(values: Sequence[float], width: int = _SPARKLINE_WIDTH, ascii_only: bool = False) -> str:
    """Numbers as a row of bars, the smallest lowest; long rows are averaged down to `width`.

    >>> sparkline([0, 1, 2, 3, 2, 1])
    '▁▃▆█▆▃'
    """
    sparks = _ASCII_SPARKS if ascii_only else _SPARKS
    finite = [value for value in values if math.isfinite(value)]
    cells = min(width, len(finite))
    edges = [cell * len(finite) // cells for cell in range(cells + 1)] if cells else []
    means = [sum(finite[left:right]) / (right - left) for left, right in itertools.pairwise(edges)]
    if not means:
        return ""
    low, spread = min(means), max(means) - min(means)
    top = len(sparks) - 1
    return "".join(sparks[round(top * (mean - low) / spread) if spread > 0 else top // 2] for mean in means)


def format_number(value: float) -> str:
    """A number for a person: about three digits, a dash for what is not known.

    >>> [format_number(value) for value in (45.2, 487.25, 0.11345, 2.5e-5, 200_000, float("nan"))]
    ['45.2', '487.2', '0.113', '2.5e-05', '200,000', '-']
    """
    if math.isnan(value):
        return "-"
    if abs(value) < 100 or math.isinf(value):
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 10_000 or value == round(value) else f"{value:,.1f}"


def format_time(seconds: float) -> str:
    """A duration for a person.

    >>> [format_time(value) for value in (6.2, 75, 3 * 3600 + 62, float("nan"))]
    ['0:06', '1:15', '3:01:02', '-']
    """
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def pairs(values: dict[str, str], columns: int) -> Table:
    """Names and values side by side, so many pairs to a row."""
    grid = Table.grid(padding=(0, 2))
    for _ in range(columns):
        grid.add_column(style="dim")
        grid.add_column(justify="right")
    cells = [cell for name, value in values.items() for cell in (name, value)]
    for start in range(0, len(cells), 2 * columns):
        grid.add_row(*(Text(cell) for cell in cells[start : start + 2 * columns]))
    return grid
