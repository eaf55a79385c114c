"""Ports: rows find their places, means are means, and versions travel with the data."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import stand_in

from sherd.runtime.means import MeanIn, MeanOut
from sherd.runtime.ports import RowsIn, RowsOut, Session, SharedIn, SharedOut
from sherd.runtime.shared import Field
from sherd.runtime.store import StoreSpec, build_all
from sherd.runtime.streams import StreamSpec

ROWS = Field((3, 4), "float32", 1)
SAME = Field((2,), "int32")


@pytest.fixture
def session():
    context = stand_in.context()
    yield Session(context)
    stand_in.free(context)


@pytest.fixture
def build():
    arenas = []

    def make(*specs, groups=None):
        streams = [spec for spec in specs if isinstance(spec, StreamSpec)]
        stores = [spec for spec in specs if isinstance(spec, StoreSpec)]
        arena, built, kept = build_all(streams, stores, groups)
        arenas.append(arena)
        return built | kept

    yield make
    for arena in arenas:
        arena.unlink()


def test_rows_of_two_senders_meet_in_one_batch(build, session):
    stream = build(StreamSpec("s", (ROWS, SAME), ((0, 1), (1, 4))))["s"]
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    for writer, (low, high) in enumerate(((0, 1), (1, 4))):
        port = RowsOut(((stream, writer, 0, high - low),), (1, None)).open(session)
        port.send([whole[:, low:high], np.array([7, 8], np.int32)])
    port = RowsIn((stream,), ((0, 4),), (1, None)).open(session)
    rows, same = port.receive()
    np.testing.assert_array_equal(rows, whole)
    assert same.tolist() == [7, 8]
    port.release()
    assert stream.counts().released == 1


def test_rows_of_one_sender_are_shared_out(build, session):
    half = Field((3, 2), "float32", 1)
    built = build(*(StreamSpec(name, (half,), ((0, 2),)) for name in ("a", "b")))
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    links = ((built["a"], 0, 0, 2), (built["b"], 0, 2, 4))
    RowsOut(links, (1,)).open(session).send([whole])
    for name, columns in (("a", slice(0, 2)), ("b", slice(2, 4))):
        (found,) = RowsIn((built[name],), ((0, 2),), (1,)).open(session).receive()
        np.testing.assert_array_equal(found, whole[:, columns])


def test_rows_that_come_apart_are_gathered(build, session):
    part = Field((2, 3), "float32", 0)
    names = ["a", "b"]
    built = build(*(StreamSpec(n, (part, SAME), ((0, 2),)) for n in names), groups={"here": names})
    for value, name in enumerate(names):
        port = RowsOut(((built[name], 0, 0, 2),), (0, None)).open(session)
        port.send([np.full((2, 3), value, np.float32), np.array([5, 6], np.int32)])
    wire = RowsIn((built["a"], built["b"]), ((0, 2), (2, 4)), (0, None), grouped=True)
    rows, same = wire.open(session).receive()
    assert rows[:, 0].tolist() == [0, 0, 1, 1]
    assert same.tolist() == [5, 6]


def test_a_mean_is_over_all_contributions(build, session):
    stream = build(
        StreamSpec("s", (Field((3, 2), "float32", 0), Field((3,), "float32", 0)), ((0, 1), (1, 2), (2, 3)))
    )
    for writer in range(3):
        port = MeanOut(stream["s"], writer).open(session)
        port.send([np.array([writer, 3.0], np.float32), np.float32(writer)])
    vector, scalar = MeanIn(stream["s"]).open(session).receive()
    assert vector.tolist() == [1.0, 3.0]
    assert scalar == 1.0
    assert stream["s"].counts().released == 1


def test_versions_travel_with_what_was_made_with_them(build, session):
    built = build(StoreSpec("params", (SAME,), readers=1), StreamSpec("s", (ROWS,), ((0, 4),)))
    owner = Session(session.context)
    sender = SharedOut(built["params"], versioned=True).open(owner)
    receiver = SharedIn(built["params"], 0, versioned=True).open(session)
    port = RowsOut(((built["s"], 0, 0, 4),), (1,)).open(session)
    for version in (1, 2):
        sender.send([np.array([version, 0], np.int32)])
        assert receiver.receive()[0][0] == version
    port.send([np.zeros((3, 4), np.float32)])
    reader = built["s"].reader(lambda: None)
    reader.take()
    assert reader.tags == [2]
    assert owner.version == 2


def test_a_rollout_is_as_old_as_its_oldest_row(build, session):
    stream = build(StreamSpec("s", (ROWS,), ((0, 4),)))["s"]
    port, reader, tags = RowsOut(((stream, 0, 0, 4),), (1,)).open(session), stream.reader(lambda: None), []
    for version, went_ahead in ((3, True), (5, False), (8, False)):
        session.begin()
        session.version = version
        if went_ahead:  # rows begin the next one
            session.went_ahead()
        port.send([np.zeros((3, 4), np.float32)])
        reader.take()
        tags += reader.tags
        reader.release()
    assert tags == [3, 3, 8]


def test_a_synchronous_reader_waits_for_its_version_and_an_asynchronous_one_does_not(build, session):
    store = build(StoreSpec("params", (SAME,), readers=2))["params"]
    sender = SharedOut(store, versioned=True).open(Session(session.context))
    waiting = SharedIn(store, 0, versioned=True).open(session)
    latest = SharedIn(store, 1, versioned=True, latest=True).open(Session(session.context))
    sender.send([np.array([1, 0], np.int32)])
    assert waiting.receive()[0][0] == latest.receive()[0][0] == 1
    assert latest.receive()[0][0] == 1  # nothing newer: what it has
    found = []
    thread = threading.Thread(target=lambda: found.append(waiting.receive()[0][0]))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    sender.send([np.array([2, 0], np.int32)])
    thread.join(5)
    assert found == [2]
    assert latest.receive()[0][0] == 2
