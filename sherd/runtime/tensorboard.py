"""Rows as TensorBoard scalars.

tensorboardX's usual writer pickles every value through a queue to a thread. A few rows per second need
neither: each becomes one record of its event file, written where it is made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sherd.runtime.events import Row, RunInfo, number, tag
from sherd.runtime.status import FragmentStatus

# A chart has some thousand points; more than five rows per second only make it slow to load.
_SECONDS_BETWEEN = 0.2
_OF_FRAGMENTS = ("per_second", "busy", "waiting", "sending", "queue", "restarts", "staleness")


class TensorBoardSink:
    """Writes rows to an event file in `directory`: at most five per second, and always the last.

    A row that is held back is not lost: the next one written carries the newest finite value of each metric,
    so that a return that is known only now and then still shows.
    """

    def __init__(self, directory: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        Path(directory).mkdir(parents=True, exist_ok=True)
        # The writer's own name is unique per second only, and it truncates the file of that name.
        self._writer = EventsWriter(str(Path(directory) / "events"), f".{time.time_ns()}")
        self._clock = clock
        self._next = -math.inf
        self._pending: dict[str, float] = {}
        self._steps = 0
        self._closed = False

    def start(self, info: RunInfo) -> None:
        """Nothing to write."""

    def iteration(self, row: Row) -> None:
        """Note the row, and write what was noted if the last time is long enough ago."""
        for name, value in row.items():
            self._note(name, value)
        now = self._clock()
        if now >= self._next:
            self._next = now + _SECONDS_BETWEEN
            self._write()

    def note(self, text: str) -> None:
        """Charts have no place for notes."""

    def fragments(self, statuses: Sequence[FragmentStatus]) -> None:
        """Note the picture as `fragment/<name>/busy` and so on; it is written with the next row."""
        for status in statuses:
            for field in _OF_FRAGMENTS:
                self._note(f"fragment/{status.name}/{field}", getattr(status, field))

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the last row."""
        self._write()

    def close(self) -> None:
        """Write the last row and close the file."""
        if not self._closed:
            self._closed = True
            self._write()
            self._writer.close()

    def _note(self, name: str, value: Any) -> None:
        value = number(value)
        if math.isfinite(value):
            self._pending[name] = value

    def _write(self) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        self._steps = int(self._pending.pop("steps", self._steps))
        if not self._pending:
            return
        values = [Summary.Value(tag=tag(name), simple_value=value) for name, value in self._pending.items()]
        event = Event(wall_time=time.time(), step=self._steps, summary=Summary(value=values))
        self._pending = {}
        self._writer.write_event(event)
        self._writer.flush()
