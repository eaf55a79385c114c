"""The ends of a stream: what writes into it and what reads from it (streams.py says how a stream works)."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from sherd.errors import UsageError
from sherd.runtime.shared import Arrays, Bell, Watch, fence, wait_until

if TYPE_CHECKING:
    from sherd.runtime.streams import Stream


class Writer:
    """One writer's end of a stream."""

    def __init__(self, stream: Stream, index: int, watch: Watch) -> None:
        if not 0 <= index < len(stream.spec.rows):
            raise UsageError(f"stream {stream.spec.name!r} has no writer {index}")
        layout, self._words, self._watch = stream.layout, stream.arena.words, watch
        self._name, self._slots = stream.spec.name, stream.spec.slots
        self._ring, self._free = stream.full[index].ring, stream.free[index]
        self._released_at = stream.word(layout.released)
        self._published_at = stream.word(layout.published[index])
        self._tags_at = [stream.word(offset) + index for offset in layout.tags]
        self._stamps_at = [stream.word(offset) + index for offset in layout.stamps]
        low, high = stream.spec.rows[index]
        self._views = [
            [
                _rows_of(array, field.axis, low, high, index)
                for array, field in zip(arrays, stream.spec.fields)
            ]
            for arrays in stream.views(writeable=True)
        ]
        self._published = self._words[self._published_at]
        self._open: Arrays | None = None
        self.waited = 0.0

    @property
    def published(self) -> int:
        """Messages published so far under this index, by earlier processes too."""
        return self._published

    def ready(self) -> bool:
        """Whether slot() would not block."""
        return self._open is not None or self._is_free()

    def _is_free(self) -> bool:
        return self._published - self._words[self._released_at] < self._slots

    def slot(self) -> Arrays:
        """My rows of the next slot, to be written in place; waits until it is free."""
        if self._open is None:
            if self._is_free():
                self._free.pick_up(False)
            else:
                self.waited += wait_until(self._is_free, self._free, self._watch)
            fence()  # what follows overwrites what the reader has let go of
            self._open = self._views[self._published % self._slots]
        return self._open

    def publish(self, tag: int = 0) -> None:
        """Hand the slot over; the tag (a parameter version) travels with it."""
        if self._open is None:
            raise UsageError(f"stream {self._name!r}: publish() without slot()")
        words, slot = self._words, self._published % self._slots
        words[self._tags_at[slot]] = tag
        words[self._stamps_at[slot]] = perf_counter_ns()
        self._open = None
        self._published += 1
        fence()  # the data is there before the counter says so
        words[self._published_at] = self._published
        self._ring()


def _rows_of(
    array: np.ndarray[Any, Any], axis: int | None, low: int, high: int, writer: int
) -> np.ndarray[Any, Any]:
    """A writer's part of an array; what belongs to writer 0 alone, others can only look at."""
    if axis is not None:
        return array[(slice(None),) * axis + (slice(low, high),)]
    view = array.view()
    view.flags.writeable = writer == 0
    return view


class Reader:
    """The consumer's end of a stream."""

    def __init__(self, stream: Stream, watch: Watch) -> None:
        layout, self._words, self._watch = stream.layout, stream.arena.words, watch
        self._name, self._slots = stream.spec.name, stream.spec.slots
        self._taken_at, self._released_at = stream.word(layout.taken), stream.word(layout.released)
        self._writers = [
            (stream.word(offset), bell.pick_up, bell) for offset, bell in zip(layout.published, stream.full)
        ]
        self._published_at = [stream.word(offset) for offset in layout.published]
        self._tags = [self._beside(stream, offset) for offset in layout.tags]
        self._stamps = [self._beside(stream, offset) for offset in layout.stamps]
        self._free = [bell.ring for bell in stream.free]
        self._views = stream.views(writeable=False)
        # What an earlier process took and did not release is taken again: nothing is lost, no slot is leaked.
        self._taken = self._released = self._words[self._released_at]
        self._words[self._taken_at] = self._taken
        self.tags: list[int] = []
        self.waited = 0.0

    @staticmethod
    def _beside(stream: Stream, offset: int) -> memoryview[int]:
        """One word of every writer."""
        first = stream.word(offset)
        return stream.arena.words[first : first + len(stream.spec.rows)]

    @property
    def taken(self) -> int:
        """Messages taken so far, by earlier processes too."""
        return self._taken

    @property
    def released(self) -> int:
        """Messages given back so far, by earlier processes too."""
        return self._released

    def ready(self) -> bool:
        """Whether take() would not block."""
        words, taken = self._words, self._taken
        for at in self._published_at:  # noqa: SIM110 - a generator would double the cost of this hot path
            if words[at] <= taken:
                return False
        return True

    def take(self) -> Arrays:
        """The next message, once every writer has published it: read-only views, mine until release()."""
        words, taken = self._words, self._taken
        if taken - self._released == self._slots:
            raise UsageError(f"stream {self._name!r}: all {self._slots} slots are taken; release() one first")
        for at, pick_up, bell in self._writers:
            if words[at] > taken:
                pick_up(False)
            else:
                self._wait(at, bell)
        fence()  # what follows looks at the data that the counters announced
        slot = taken % self._slots
        self.tags = self._tags[slot].tolist()
        self._taken = words[self._taken_at] = taken + 1
        return self._views[slot]

    def _wait(self, at: int, bell: Bell) -> None:
        words, taken = self._words, self._taken
        self.waited += wait_until(lambda: words[at] > taken, bell, self._watch)

    def release(self) -> None:
        """Give back the oldest slot that was taken; its writers may overwrite it from now on."""
        if self._released == self._taken:
            raise UsageError(f"stream {self._name!r}: release() without take()")
        self._released += 1
        fence()  # everything I read of it, I have read
        self._words[self._released_at] = self._released
        for ring in self._free:
            ring()

    def arrived(self) -> int:
        """When the next message was complete (perf_counter_ns, which all processes of a machine share)."""
        return max(self._stamps[self._taken % self._slots])


class AnyReader:
    """Several streams that end in one place, in the order in which their messages arrive.

    They must have been built as a group, so that one bell rings for all of them.
    """

    def __init__(self, streams: Sequence[Stream], watch: Watch) -> None:
        bells = {id(bell): bell for stream in streams for bell in stream.full}
        if len(bells) != 1:
            raise UsageError(
                "an AnyReader's streams must share one bell: name them as a group when building them"
            )
        (self._bell,) = bells.values()
        self._watch = watch
        self.readers = [stream.reader(watch) for stream in streams]
        self.waited = 0.0

    def take_ready(self, least: int = 1) -> list[int]:
        """Wait until `least` streams have a message; all that have one, longest waiting first."""
        if not 1 <= least <= len(self.readers):
            raise UsageError(f"cannot wait for {least} of {len(self.readers)} streams")
        found = self._ready()
        if len(found) < least:
            self.waited += wait_until(lambda: len(self._ready()) >= least, self._bell, self._watch)
            found = self._ready()
        if len(found) > 1:
            fence()  # the stamps were written before the counters
            found.sort(key=lambda index: self.readers[index].arrived())
        return found

    def _ready(self) -> list[int]:
        return [index for index, reader in enumerate(self.readers) if reader.ready()]
