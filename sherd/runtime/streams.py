"""Streams: bounded, typed, preallocated queues between processes, with one consumer and one or more writers.

A stream is a ring of slots in shared memory. Each slot holds one whole message; each writer owns a range of
rows (environments) of every slot. What the consumer takes is one batch, and nobody had to concatenate it.

A slot belongs to its writers until all of them have published it, then to the reader until it releases it:

    released <= taken <= published (of every writer) <= released + slots

The counters live in shared memory and each has one writer, so a process that was killed and started again
goes on where they say; a message that was half written was never announced (shared.py: order of accesses).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sherd.errors import UsageError
from sherd.runtime.shared import WORD, Arena, ArenaPlan, Arrays, Bell, Field, Watch, fill_with_magic
from sherd.runtime.stream_ends import AnyReader, Reader, Writer

__all__ = [
    "AnyReader",
    "Reader",
    "Stream",
    "StreamCounts",
    "StreamSpec",
    "Writer",
    "build_streams",
]


@dataclass(frozen=True)
class StreamSpec:
    """What a stream carries, and which rows [low, high) of it each writer writes.

    A field without an axis is written by writer 0 only.
    """

    name: str
    fields: tuple[Field, ...]
    rows: tuple[tuple[int, int], ...]
    slots: int = 2

    def __post_init__(self) -> None:
        if self.slots < 1 or not self.rows:
            raise UsageError(f"stream {self.name!r} needs at least one slot and one writer")
        for field in self.fields:
            if field.axis is not None:
                self._check_rows(field.shape[field.axis])

    def _check_rows(self, size: int) -> None:
        ranges = sorted(self.rows)
        edges = [0, *(high for _, high in ranges)]
        if [low for low, _ in ranges] != edges[:-1] or edges[-1] != size:
            raise UsageError(
                f"stream {self.name!r}: rows {self.rows} do not share out {size} rows, each once"
            )


@dataclass(frozen=True)
class StreamCounts:
    """How far a stream has come: whole messages, and what part of its slots is full."""

    published: int
    taken: int
    released: int
    fill: float


class Layout:
    """Where everything of a stream lies, in bytes from its own beginning."""

    def __init__(self, spec: StreamSpec) -> None:
        plan, writers = ArenaPlan(), len(spec.rows)
        self.taken = plan.reserve(WORD)
        self.released = plan.reserve(WORD)
        self.published = [plan.reserve(WORD) for _ in range(writers)]
        self.tags = [plan.reserve(writers * WORD) for _ in range(spec.slots)]
        self.stamps = [plan.reserve(writers * WORD) for _ in range(spec.slots)]
        self.fields = [[plan.reserve(field.nbytes) for field in spec.fields] for _ in range(spec.slots)]
        self.size = plan.size


class Stream:
    """A handle to be passed to processes; each makes its own `writer` or `reader` of it.

    >>> arena, streams = build_streams([StreamSpec("obs", (Field((4, 3), "float32", 0),), ((0, 2), (2, 4)))])
    >>> stream, nothing = streams["obs"], lambda: None
    >>> for index in range(2):
    ...     writer = stream.writer(index, nothing)
    ...     writer.slot()[0][:] = index
    ...     writer.publish(tag=7)
    >>> reader = stream.reader(nothing)
    >>> reader.take()[0][:, 0].tolist(), reader.tags
    ([0.0, 0.0, 1.0, 1.0], [7, 7])
    >>> reader.release(); arena.unlink()
    """

    def __init__(
        self, spec: StreamSpec, arena: Arena, base: int, full: tuple[Bell, ...], free: tuple[Bell, ...]
    ) -> None:
        self.spec, self.arena, self.base = spec, arena, base
        self.full, self.free = full, free  # one bell per writer: rung by it, rung for it
        self.layout = Layout(spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream, (self.spec, self.arena, self.base, self.full, self.free)

    @staticmethod
    def plan(spec: StreamSpec, plan: ArenaPlan) -> int:
        """Reserve a stream's memory; the offset at which it begins."""
        return plan.reserve(Layout(spec).size)

    def word(self, offset: int) -> int:
        """The index of a counter among the arena's words."""
        return (self.base + offset) // WORD

    def views(self, writeable: bool) -> list[Arrays]:
        """For every slot, its arrays with all rows."""
        return [
            [
                self.arena.array(self.base + offset, field.shape, field.dtype, writeable)
                for field, offset in zip(self.spec.fields, offsets)
            ]
            for offsets in self.layout.fields
        ]

    def fill_with_magic(self) -> None:
        """Mark all of it as never written."""
        for arrays in self.views(writeable=True):
            for array in arrays:
                fill_with_magic(array)

    def writer(self, index: int, watch: Watch) -> Writer:
        """The end of writer `index`; it goes on after what was published under that index."""
        return Writer(self, index, watch)

    def reader(self, watch: Watch) -> Reader:
        """The consumer's end; it goes on with the oldest message that was not released."""
        return Reader(self, watch)

    def counts(self) -> StreamCounts:
        """How far it has come, seen from any process at any time."""
        words, layout = self.arena.words, self.layout
        released, taken = words[self.word(layout.released)], words[self.word(layout.taken)]
        published = min(words[self.word(offset)] for offset in layout.published)
        fill = min(max((published - released) / self.spec.slots, 0.0), 1.0)
        return StreamCounts(published, taken, released, fill)

    def wake(self) -> None:
        """Ring every bell: after a death, somebody may wait for a ring that died with its process."""
        for bell in {*self.full, *self.free}:
            bell.ring()


def make_streams(
    specs: Sequence[StreamSpec],
    bases: Sequence[int],
    arena: Arena,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Stream]:
    """Streams in memory planned for them; those of a group share the bell that wakes their reader."""
    shared = {name: bell for members in (groups or {}).values() for bell in [Bell()] for name in members}
    streams = {}
    for spec, base in zip(specs, bases):
        writers = len(spec.rows)
        full = (
            (shared[spec.name],) * writers if spec.name in shared else tuple(Bell() for _ in range(writers))
        )
        streams[spec.name] = Stream(spec, arena, base, full, tuple(Bell() for _ in range(writers)))
        streams[spec.name].fill_with_magic()
    return streams


def build_streams(
    specs: Sequence[StreamSpec], groups: Mapping[str, Sequence[str]] | None = None
) -> tuple[Arena, dict[str, Stream]]:
    """An arena and the streams in it; `groups` names those that end in one AnyReader."""
    plan = ArenaPlan()
    bases = [Stream.plan(spec, plan) for spec in specs]
    arena = Arena.create(plan.size)
    return arena, make_streams(specs, bases, arena, groups)
