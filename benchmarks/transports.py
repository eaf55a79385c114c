"""The transports that streams.py compares: each is a pair of ends with `open`, `send` and `receive`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Semaphore
from typing import Any, Self

import numpy as np

from sherd.runtime.shared import Field
from sherd.runtime.store import Store, StoreSpec, build_all
from sherd.runtime.streams import AnyReader, Stream, StreamSpec, build_streams

SPAWN = get_context("spawn")
SMALL = 128
Array = np.ndarray[Any, Any]


def no_watch() -> None:
    """Nobody watches a benchmark."""


class Link:
    """One process's end of a two-way link; `pair` makes both, and what must be kept alive or unlinked."""

    def open(self) -> Self:
        """Called once in the process that uses it."""
        return self

    def close(self) -> None:
        """Called once by the process that measures."""

    def send(self, array: Array) -> None:
        """Hand over an array's content."""
        raise NotImplementedError

    def receive(self) -> int:
        """Wait for a message, let go of it; how many messages that accounts for."""
        raise NotImplementedError


@dataclass
class Semaphores(Link):
    """No data at all: the least that waking each other costs."""

    wake: Semaphore
    woken: Semaphore

    @classmethod
    def pair(cls, nbytes: int) -> tuple[Semaphores, Semaphores, Any]:
        one, two = SPAWN.Semaphore(0), SPAWN.Semaphore(0)
        return cls(one, two), cls(two, one), None

    def send(self, array: Array) -> None:
        self.wake.release()

    def receive(self) -> int:
        return int(self.woken.acquire())


@dataclass
class Pipe(Link):
    """multiprocessing.Pipe with raw bytes (no pickling) into a buffer that is already there."""

    connection: Connection[Any, Any]
    nbytes: int

    @classmethod
    def pair(cls, nbytes: int) -> tuple[Pipe, Pipe, Any]:
        near, far = SPAWN.Pipe()
        return cls(near, SMALL), cls(far, nbytes), (near, far)

    def open(self) -> Self:
        self.buffer = np.empty(self.nbytes, "uint8")
        return self

    def send(self, array: Array) -> None:
        self.connection.send_bytes(array)

    def receive(self) -> int:
        self.connection.recv_bytes_into(self.buffer)
        return 1


@dataclass
class ZeroMQ(Link):
    """A PAIR of sockets over a Unix socket; large messages without pyzmq's copies."""

    address: str
    binds: bool

    @classmethod
    def pair(cls, nbytes: int) -> tuple[ZeroMQ, ZeroMQ, Any]:
        folder = tempfile.TemporaryDirectory()
        return cls(f"ipc://{folder.name}/s", True), cls(f"ipc://{folder.name}/s", False), folder

    def open(self) -> Self:
        import zmq

        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.PAIR)
        self.socket.set_hwm(2)
        (self.socket.bind if self.binds else self.socket.connect)(self.address)
        return self

    def close(self) -> None:
        self.context.destroy(linger=0)  # left to the garbage collector, it may wait for ever

    def send(self, array: Array) -> None:
        self.socket.send(array, copy=array.nbytes < 2**16)

    def receive(self) -> int:
        self.socket.recv(copy=False)
        return 1


@dataclass
class Streams(Link):
    """A Stream each way: written in place, read as views."""

    out: Stream
    back: Stream

    @classmethod
    def pair(cls, nbytes: int) -> tuple[Streams, Streams, Any]:
        sizes = {"there": nbytes, "back": SMALL}
        arena, streams = build_streams([_stream(name, size) for name, size in sizes.items()])
        there, back = streams["there"], streams["back"]
        return cls(there, back), cls(back, there), arena

    def open(self) -> Self:
        self.writer, self.reader = self.out.writer(0, no_watch), self.back.reader(no_watch)
        return self

    def send(self, array: Array) -> None:
        self.writer.slot()[0][...] = array
        self.writer.publish()

    def receive(self) -> int:
        self.reader.take()
        self.reader.release()
        return 1


def _stream(name: str, nbytes: int) -> StreamSpec:
    return StreamSpec(name, (Field((nbytes,), "uint8", 0),), ((0, nbytes),))


@dataclass
class AnyStreams(Streams):
    """A Stream each way whose receiver listens to a second, silent one as well."""

    out: Stream
    back: list[Stream]

    @classmethod
    def pair(cls, nbytes: int) -> tuple[AnyStreams, AnyStreams, Any]:
        sizes = {"there": nbytes, "silent there": SMALL, "back": SMALL, "silent back": SMALL}
        groups = {"far": ["there", "silent there"], "near": ["back", "silent back"]}
        arena, streams = build_streams([_stream(name, size) for name, size in sizes.items()], groups)
        there, silent_there, back, silent_back = streams.values()
        return cls(there, [back, silent_back]), cls(back, [there, silent_there]), arena

    def open(self) -> Self:
        self.writer, self.inbox = self.out.writer(0, no_watch), AnyReader(self.back, no_watch)
        return self

    def receive(self) -> int:
        ready = self.inbox.take_ready()
        for index in ready:
            self.inbox.readers[index].take()
            self.inbox.readers[index].release()
        return len(ready)


@dataclass
class Stores(Link):
    """A Store each way: the receiver copies the newest version and never sees those in between."""

    out: Store
    back: Store

    @classmethod
    def pair(cls, nbytes: int) -> tuple[Stores, Stores, Any]:
        sizes = {"there": nbytes, "back": SMALL}
        specs = [StoreSpec(name, (Field((size,), "uint8"),), readers=1) for name, size in sizes.items()]
        arena, _, stores = build_all([], specs)
        there, back = stores["there"], stores["back"]
        return cls(there, back), cls(back, there), arena

    def open(self) -> Self:
        self.writer, self.reader, self.sent = self.out.writer(), self.back.reader(0, no_watch), 0
        return self

    def send(self, array: Array) -> None:
        self.writer.publish([array], self.sent)
        self.sent += 1

    def receive(self) -> int:
        before = self.reader.have
        self.reader.wait(before + 1)
        return self.reader.have - before


KINDS: dict[str, Any] = {
    "Stream": Streams,
    "AnyReader": AnyStreams,
    "Store": Stores,
    "multiprocessing Pipe": Pipe,
    "ZeroMQ (ipc, PAIR)": ZeroMQ,
}
