"""A run on the terminal: a live panel for a person, plain lines for a log file.

Training must not wait for its picture. `iteration` only notes the row; on a terminal rich's refresh thread
draws what was last noted, a few times per second, and so the clock also ticks while the first iteration
compiles. Everything goes to stderr, because stdout belongs to results (`--json`).
"""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.live import Live

from sherd.runtime.events import Row, RunInfo
from sherd.runtime.fragment_table import fragments_line
from sherd.runtime.progress import Progress, format_number, pairs, title
from sherd.runtime.status import FragmentStatus

_SECONDS_BETWEEN_LINES = 2.0
_SECONDS_BETWEEN_FRAGMENTS = 10.0
_REFRESH_PER_SECOND = 4
_SENTENCES = ("bottleneck", "warning")  # of a summary: whole sentences, which need no name before them


class Display:
    """The sink that people look at: a panel on a terminal, otherwise a line every two seconds.

    >>> import io
    >>> out = io.StringIO()
    >>> display = Display(Console(file=out), clock=lambda: 0.0)
    >>> display.start(RunInfo("ppo", "CartPole-v1", "single", "inline", 1, 8, 200_000, 1024))
    >>> row = {"steps": 20_480, "steps_per_second": 31_204.0, "episode_return": 45.2, "loss": 0.113}
    >>> display.iteration(row)
    >>> display.close()
    >>> print(out.getvalue())
    ppo on CartPole-v1  policy single (inline)  seed 1  8 environments
    steps 20,480/200,000  10%  31,204 steps/s  return 45.2  loss 0.113  elapsed 0:00  left -
    """

    def __init__(
        self,
        console: Console | None = None,
        plain: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console if console is not None else Console(stderr=True)
        terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self._plain = not terminal if plain is None else plain
        self._clock = clock
        self._live: Live | None = None
        self._progress: Progress | None = None
        self._next_line = -math.inf
        self._next_fragments = -math.inf
        self._unprinted = False

    def start(self, info: RunInfo) -> None:
        """Print the title, or open the panel."""
        self._progress = Progress(info, self._clock)
        # Not the first picture: it shows a run that compiles.
        self._next_fragments = self._clock() + _SECONDS_BETWEEN_FRAGMENTS
        if self._plain:
            self._print(title(info))
            return
        # A panel that is still open hides the cursor, so even an exit that skips close() must pass here.
        atexit.register(self._stop)
        self._live = Live(
            get_renderable=self._panel,
            console=self._console,
            refresh_per_second=_REFRESH_PER_SECOND,
            # Prints to a terminal would tear the panel; prints to a file or pipe must arrive there.
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)

    def iteration(self, row: Row) -> None:
        """Note the row; in plain mode print a line if the last one is two seconds old."""
        if self._progress is None:
            return
        self._progress.add(row)
        if not self._plain:
            return
        self._unprinted = True
        now = self._clock()
        if now >= self._next_line:
            self._next_line = now + _SECONDS_BETWEEN_LINES
            self._print_line()

    def note(self, text: str) -> None:
        """Print a note; above the panel if there is one, after the newest line otherwise."""
        if self._unprinted:
            self._print_line()
        self._print(f"note: {text}")

    def fragments(self, statuses: Sequence[FragmentStatus]) -> None:
        """Note the picture; in plain mode print it if the last one is ten seconds old."""
        if self._progress is None:
            return
        self._progress.fragments(statuses)
        now = self._clock()
        if self._plain and statuses and now >= self._next_fragments:
            self._next_fragments = now + _SECONDS_BETWEEN_FRAGMENTS
            self._print(fragments_line(statuses))

    def finish(self, summary: dict[str, Any]) -> None:
        """Print the last line or leave the last panel, then the summary's numbers and texts."""
        self.close()
        shown = {name: _format(value) for name, value in summary.items() if _is_short(value)}
        sentences = [shown.pop(name) for name in _SENTENCES if name in shown]
        if self._plain:
            self._print("  ".join(["finished", *(f"{name} {value}" for name, value in shown.items())]))
        elif shown:
            self._console.print(pairs(shown, columns=1))
        for sentence in sentences:
            self._print(sentence)

    def close(self) -> None:
        """Print what is still unprinted and give the terminal back."""
        try:
            if self._unprinted:
                self._print_line()
        finally:
            self._stop()

    def _stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            atexit.unregister(self._stop)
            live.stop()

    def _print_line(self) -> None:
        self._unprinted = False
        if self._progress is not None:
            self._print(self._progress.line())

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def _panel(self) -> RenderableType:
        if self._progress is None:
            return ""
        options = self._console.options
        return self._progress.panel(options.ascii_only, options.max_width)


def _is_short(value: Any) -> bool:
    """Whether the value fits on a line: not a container, not an array with axes."""
    return value is not None and not isinstance(value, dict | list | tuple | set) and np.ndim(value) == 0


def _format(value: Any) -> str:
    """A summary's value: numbers as numbers, the rest as text."""
    if isinstance(value, str | bool):
        return str(value)
    try:
        return format_number(float(value))
    except (TypeError, ValueError):
        return str(value)
