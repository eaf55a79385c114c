"""Lanes: how an asynchronous learner takes what free-running workers send.

A lane is a share of the environments that runs by itself. A batch has one place for each lane; whoever has
something ready fills its own place, or, if that is taken already, one that is still free: a fast lane may
fill two and a slow one none. What was made with parameters that are too old is dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sherd.runtime.ports import Axes, Session
from sherd.runtime.streams import AnyReader, Stream


@dataclass(frozen=True)
class LanesIn:
    """Everything that arrives from lanes at one moment: `streams[message][lane]`.

    `rows_per_lane` is 0 where a message is not made of rows (a gradient): then one message is one batch.
    """

    streams: tuple[tuple[Stream, ...], ...]
    axes: tuple[Axes, ...]
    rows_per_lane: int
    steps_per_lane: int
    max_staleness: int

    def open(self, session: Session) -> Lanes:
        """The gate that all its messages come through."""
        return Lanes(self, session)


class Lanes:
    """Assembles batches; `port(number)` is the port of one of the messages."""

    def __init__(self, wire: LanesIn, session: Session) -> None:
        self._wire, self._session, self._clock = wire, session, session.context.clock
        every = [stream for message in wire.streams for stream in message]
        self._any = AnyReader(every, session.context.watch)
        self._count = len(wire.streams[0])
        self._batches: list[list[np.ndarray[Any, Any]]] = [[] for _ in wire.streams]
        self._due: set[int] = set()

    def port(self, number: int) -> LanePort:
        """The port of one message."""
        return LanePort(self, number)

    def receive(self, number: int) -> list[np.ndarray[Any, Any]]:
        """One message of the present batch; the first one asked for assembles the batch."""
        if number not in self._due:
            self._assemble()
            self._due = set(range(len(self._batches)))
        self._due.discard(number)
        return self._batches[number]

    def _assemble(self) -> None:
        free = list(range(self._count)) if self._wire.rows_per_lane else [0]
        while free:
            with self._clock.waiting():
                lanes = self._ready()
            for lane in lanes:
                if free and self._take(lane, lane if lane in free else free[0]):
                    free.remove(lane if lane in free else free[0])

    def _ready(self) -> list[int]:
        """Lanes of which every message is there, longest waiting first."""
        least = 1
        while True:
            found = self._any.take_ready(least)
            lanes = [i % self._count for i in found]
            whole = [lane for lane in dict.fromkeys(lanes) if lanes.count(lane) == len(self._batches)]
            if whole:
                return whole
            least = len(found) + 1

    def _take(self, lane: int, place: int) -> bool:
        readers = [self._any.readers[m * self._count + lane] for m in range(len(self._batches))]
        taken = [reader.take() for reader in readers]
        age = self._session.version - max(tag for reader in readers for tag in reader.tags)
        stale = age > self._wire.max_staleness
        (self._session.dropped if stale else self._session.used)[lane] += self._wire.steps_per_lane
        if not stale:
            self._session.ages.append(age)
            with self._clock.sending():
                for number, arrays in enumerate(taken):
                    self._place(number, arrays, place)
        for reader in readers:
            reader.release()
        return not stale

    def _place(self, number: int, arrays: list[np.ndarray[Any, Any]], place: int) -> None:
        rows = self._wire.rows_per_lane
        if not rows:
            self._batches[number] = [array[0].copy() for array in arrays]
            return
        axes = self._wire.axes[number]
        if not self._batches[number]:
            self._batches[number] = [_whole(a, axis, self._count) for a, axis in zip(arrays, axes)]
        for batch, array, axis in zip(self._batches[number], arrays, axes):
            if axis is None:
                np.copyto(batch, array)
            else:
                batch[(slice(None),) * axis + (slice(place * rows, (place + 1) * rows),)] = array


def _whole(array: np.ndarray[Any, Any], axis: int | None, lanes: int) -> np.ndarray[Any, Any]:
    shape = list(array.shape)
    if axis is not None:
        shape[axis] *= lanes
    return np.zeros(shape, array.dtype)


class LanePort:
    """One message that comes through a gate."""

    def __init__(self, lanes: Lanes, number: int) -> None:
        self._lanes, self._number = lanes, number

    def receive(self) -> list[np.ndarray[Any, Any]]:
        """Its arrays in the present batch."""
        return self._lanes.receive(self._number)

    def release(self) -> None:
        """Nothing to give back: batches are copies."""
