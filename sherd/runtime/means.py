"""Ports for means over replicas, such as gradients: each contributes, and whoever receives averages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sherd.runtime.ports import Session
from sherd.runtime.streams import Stream


@dataclass(frozen=True)
class MeanOut:
    """One replica's contribution to a mean."""

    stream: Stream
    writer: int

    def open(self, session: Session) -> MeanSender:
        """The port."""
        return MeanSender(self, session)


class MeanSender:
    """Writes its contribution beside the others'."""

    def __init__(self, wire: MeanOut, session: Session) -> None:
        self._session = session
        self._writer = wire.stream.writer(wire.writer, session.context.watch)

    def send(self, arrays: Sequence[Any]) -> None:
        """One contribution."""
        clock = self._session.context.clock
        with clock.waiting():
            views = self._writer.slot()
        with clock.sending():
            for view, array in zip(views, arrays):
                np.copyto(view, np.asarray(array)[None])
            self._writer.publish(self._session.version)


@dataclass(frozen=True)
class MeanIn:
    """The mean of what all replicas contribute."""

    stream: Stream

    def open(self, session: Session) -> MeanReceiver:
        """The port."""
        return MeanReceiver(self, session)


class MeanReceiver:
    """Averages over replicas, in their order."""

    def __init__(self, wire: MeanIn, session: Session) -> None:
        self._session = session
        self._reader = wire.stream.reader(session.context.watch)

    def receive(self) -> list[np.ndarray[Any, Any]]:
        """The next mean."""
        with self._session.context.clock.waiting():
            views = self._reader.take()
        means = [view.mean(axis=0, dtype=view.dtype) for view in views]
        self._reader.release()
        return means

    def release(self) -> None:
        """Nothing to give back: the mean is a copy."""
