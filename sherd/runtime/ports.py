"""Ports: the ends of what crosses between fragments, over streams and stores.

A wire (`RowsOut`, ...) is plain data that travels to a worker; opened there it becomes a port, with `send`,
or `receive` and `release`. Every port charges its waiting and copying to the worker's clock, and every
message carries the version of the parameters it was made with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sherd.runtime.store import Store
from sherd.runtime.streams import AnyReader, Stream
from sherd.runtime.worker import Context

Axes = tuple[int | None, ...]


@dataclass
class Session:
    """What the ports of one worker share."""

    context: Context
    version: int = 0  # of the parameters this worker has (or, for their owner, has published)
    begun: int | None = None  # with which rows have begun what is made now, if while something else was made
    begun_next: int | None = None  # the same of what is made next
    used: Counter[int] = field(default_factory=Counter)  # by lane: steps that were learnt from
    dropped: Counter[int] = field(default_factory=Counter)  # by lane: steps that were too old
    ages: list[int] = field(default_factory=list)  # how old, in versions, what was learnt from is

    def begin(self) -> None:
        """A worker's next iteration begins."""
        self.ages.clear()
        self.begun, self.begun_next = self.begun_next, None

    def went_ahead(self) -> None:
        """Rows have begun what the next iteration makes."""
        self.begun_next = self.version

    @property
    def oldest(self) -> int:
        """The version that rows of this iteration were made with, or the oldest of several."""
        return self.version if self.begun is None else self.begun


@dataclass(frozen=True)
class RowsOut:
    """Rows of environments to their places in one or more streams: (stream, writer, low, high) of my rows."""

    links: tuple[tuple[Stream, int, int, int], ...]
    axes: Axes

    def open(self, session: Session) -> RowsSender:
        """The port."""
        return RowsSender(self, session)


class RowsSender:
    """Copies each link's rows into its slot, in place."""

    def __init__(self, wire: RowsOut, session: Session) -> None:
        self._session, self._clock = session, session.context.clock
        watch = session.context.watch
        self.writers = [stream.writer(index, watch) for stream, index, _, _ in wire.links]
        self.units = [(low, high) for _, _, low, high in wire.links]
        self._cuts = [
            [None if axis is None else (slice(None),) * axis + (slice(low, high),) for axis in wire.axes]
            for _, _, low, high in wire.links
        ]
        self._ahead = [0] * len(self.writers)

    @property
    def published(self) -> int:
        """Messages that every link has published."""
        return min(writer.published for writer in self.writers)

    def resume(self, count: int) -> None:
        """Go on after `count` messages: what a dead predecessor published beyond them is not sent again."""
        self._ahead = [writer.published - count for writer in self.writers]

    def send(self, arrays: Sequence[Any]) -> None:
        """One message."""
        for link in range(len(self.writers)):
            self.send_link(link, arrays, self._cuts[link])

    def send_unit(self, unit: int, arrays: Sequence[Any]) -> None:
        """One message to one unit, whose rows alone the arrays hold."""
        self.send_link(unit, arrays)

    def send_link(self, link: int, arrays: Sequence[Any], cuts: Sequence[Any] | None = None) -> None:
        """One message over one link; without `cuts` the arrays hold its rows alone."""
        writer = self.writers[link]
        if self._ahead[link]:
            self._ahead[link] -= 1
            return
        with self._clock.waiting():
            views = writer.slot()
        with self._clock.sending():
            for number, (view, array) in enumerate(zip(views, arrays)):
                if view.flags.writeable:
                    array = np.asarray(array)
                    cut = cuts[number] if cuts else None
                    np.copyto(view, array if cut is None else array[cut])
            writer.publish(self._session.oldest)


@dataclass(frozen=True)
class RowsIn:
    """Rows from one or more streams, each with the range of my rows that it fills."""

    streams: tuple[Stream, ...]
    rows: tuple[tuple[int, int], ...]
    axes: Axes
    grouped: bool = False  # whether the streams share one bell, so that they can be read as they arrive

    def open(self, session: Session) -> RowsReceiver:
        """The port."""
        return RowsReceiver(self, session)


class RowsReceiver:
    """Hands out views of one stream's slot; rows of several streams are gathered into one batch."""

    def __init__(self, wire: RowsIn, session: Session) -> None:
        self.wire, self._clock = wire, session.context.clock
        watch = session.context.watch
        self.any = AnyReader(wire.streams, watch) if wire.grouped else None
        self.readers = self.any.readers if self.any else [stream.reader(watch) for stream in wire.streams]
        self.units = list(wire.rows) if wire.grouped else []
        self._held = 0
        self._batch: list[np.ndarray[Any, Any]] = []

    def ready(self) -> list[int]:
        """Wait until at least one stream has a message; all that have one."""
        if self.any is None:
            raise RuntimeError("these streams cannot be read as they arrive")
        with self._clock.waiting():
            return self.any.take_ready()

    def take_unit(self, unit: int, places: Sequence[Any]) -> None:
        """Copy the next message of one stream to where it belongs."""
        reader = self.readers[unit]
        for place, array in zip(places, reader.take()):
            np.copyto(place, array)
        reader.release()

    def receive(self) -> list[np.ndarray[Any, Any]]:
        """The next message of every stream."""
        with self._clock.waiting():
            taken = [reader.take() for reader in self.readers]
        if len(taken) == 1:
            self._held += 1
            return taken[0]
        with self._clock.sending():
            self._batch = [
                np.concatenate(parts, axis=axis) if axis is not None else parts[0].copy()
                for axis, parts in zip(self.wire.axes, zip(*taken))
            ]
        for reader in self.readers:
            reader.release()
        return self._batch

    def release(self) -> None:
        """Give back the slots whose views were handed out."""
        for _ in range(self._held):
            self.readers[0].release()
        self._held = 0


@dataclass(frozen=True)
class SharedOut:
    """What is the same for all, to whoever reads it: the one writer of a store."""

    store: Store
    versioned: bool  # whether these are the parameters, whose version every message carries

    def open(self, session: Session) -> SharedSender:
        """The port."""
        return SharedSender(self, session)


class SharedSender:
    """Publishes versions, counted by messages. Whoever owns parameters is as new as what it published."""

    def __init__(self, wire: SharedOut, session: Session) -> None:
        self._session, self._writer, self._versioned = session, wire.store.writer(), wire.versioned
        self.sent = max(wire.store.version, 0)

    def send(self, arrays: Sequence[Any]) -> None:
        """The next version."""
        self.sent += 1
        with self._session.context.clock.sending():
            self._writer.publish([np.asarray(array) for array in arrays], self.sent)
        if self._versioned:
            self._session.version = self.sent


@dataclass(frozen=True)
class SharedIn:
    """A reader of a store: version by version, or whatever is the latest."""

    store: Store
    index: int
    versioned: bool
    latest: bool = False

    def open(self, session: Session) -> SharedReceiver:
        """The port."""
        return SharedReceiver(self, session)


class SharedReceiver:
    """Waits for the next version; in an asynchronous run takes the latest and never waits after the first."""

    def __init__(self, wire: SharedIn, session: Session) -> None:
        self._session, self._latest, self._versioned = session, wire.latest, wire.versioned
        self._reader = wire.store.reader(wire.index, session.context.watch)
        self._count = 0
        self._have: list[np.ndarray[Any, Any]] = []

    def receive(self) -> list[np.ndarray[Any, Any]]:
        """The next (or latest) version."""
        self._count += 1
        with self._session.context.clock.waiting():
            newer = (
                self._reader.latest() if self._latest and self._have else self._reader.wait(self._wanted())
            )
        self._have = newer if newer is not None else self._have
        self._note_version()
        return self._have

    def _note_version(self) -> None:
        if self._versioned:
            self._session.version = self._reader.have

    def _wanted(self) -> int:
        return 1 if self._latest else self._count

    def resume(self, count: int) -> list[np.ndarray[Any, Any]] | None:
        """What a restarted worker goes on with after `count` messages: that version, or the latest."""
        with self._session.context.clock.waiting():
            newest = self._reader.latest() if self._latest or not count else self._reader.wait(count)
        self._count = count
        if newest is not None:
            self._have = newest
            self._note_version()
        return newest

    def release(self) -> None:
        """Nothing to give back: readers have copies."""
