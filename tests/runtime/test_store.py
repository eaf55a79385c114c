"""The parameter store: the newest version, whole, whoever is killed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from stream_children import SPAWN, patience, publish_half, publish_versions, start

from sherd.errors import UsageError
from sherd.runtime import shared
from sherd.runtime.shared import Closed, Field
from sherd.runtime.store import StoreSpec, build_all
from sherd.runtime.streams import StreamSpec

FIELDS = (Field((3, 4), "float32"), Field((), "int64"))
LARGE = (Field((50_000,), "float64"), Field((50_000,), "float64"))


def never():
    raise Closed


@pytest.fixture
def make_store():
    arenas = []

    def make(fields=FIELDS, readers=2, slots=4):
        arena, _, stores = build_all([], [StoreSpec("params", fields, readers, slots)])
        arenas.append(arena)
        return stores["params"]

    yield make
    for arena in arenas:
        arena.close()
        arena.unlink()


def arrays_of(number, fields=FIELDS):
    return [np.full(field.shape, number, field.dtype) for field in fields]


def assert_whole(arrays, version):
    for array in arrays:
        assert array.min() == array.max() == version


def test_a_reader_gets_the_newest_version_once(make_store):
    store = make_store()
    writer, reader = store.writer(), store.reader(0, never)
    assert reader.latest() is None
    assert (reader.have, store.version, store.read_any()) == (-1, -1, None)
    for version in (3, 4, 7):
        writer.publish(arrays_of(version), version)
    assert_whole(reader.latest(), 7)
    assert (reader.have, store.version) == (7, 7)
    assert reader.latest() is None
    other = store.reader(1, never)
    assert_whole(other.latest(), 7)


def test_copies_are_private_and_never_change(make_store):
    store = make_store()
    writer, reader, got = store.writer(), store.reader(0, never), []
    for version in range(12):
        writer.publish(arrays_of(version), version)
        got.append(reader.latest())
    for version, arrays in enumerate(got):
        assert_whole(arrays, version)
    got[-1][0][:] = 99
    assert_whole(store.read_any()[1], 11)


def test_wait_returns_what_it_has_or_blocks(make_store, monkeypatch):
    monkeypatch.setattr(shared, "TICK", 60.0)  # so that only a ring can end a wait in time
    store = make_store()
    writer, reader, got = store.writer(), store.reader(0, lambda: None), []
    writer.publish(arrays_of(1), 1)
    assert_whole(reader.wait(1), 1)
    assert reader.wait(0) is reader.wait(1)
    thread = threading.Thread(target=lambda: got.append(reader.wait(3)), daemon=True)
    thread.start()
    for version in (2, 3):
        time.sleep(0.1)
        assert thread.is_alive()
        writer.publish(arrays_of(version), version)
    thread.join(5)
    assert not thread.is_alive()
    assert_whole(got[0], 3)
    assert reader.waited > 0.05


def test_a_wait_ends_when_the_watch_raises(make_store):
    store = make_store()
    store.writer().publish(arrays_of(1), 1)
    reader = store.reader(0, never)
    store.wake()
    with pytest.raises(Closed):
        reader.wait(2)
    assert reader.have == 1


@pytest.mark.parametrize("slots", [2, 4])
def test_no_version_is_ever_torn(make_store, slots):
    store = make_store(LARGE, readers=1, slots=slots)
    process = start(publish_versions, store, 0, 1500)
    reader, last, seen = store.reader(0, patience()), -1, 0
    while last < 1499:
        arrays = reader.wait(last + 1)
        assert reader.have > last
        assert_whole(arrays, reader.have)
        last, seen = reader.have, seen + 1
    process.join(10)
    assert process.exitcode == 0
    assert seen > 20


class Overtaken:
    """An array whose copying takes so long that the writer comes round meanwhile, and is not done yet."""

    def __init__(self, array, overtake):
        self.array, self.overtake = array, overtake

    def copy(self):
        half = self.array.copy()
        self.overtake()
        half[1:] = self.array[1:]
        return half


class Failing:
    """An array that cannot be copied."""

    shape, dtype = FIELDS[1].shape, np.dtype(FIELDS[1].dtype)

    def __array__(self, dtype=None, copy=None):
        raise InterruptedError


def test_a_copy_during_which_the_slot_was_overwritten_is_thrown_away(make_store):
    store = make_store(slots=2)
    writer = store.writer()
    writer.publish(arrays_of(1), 1)

    def overtake():
        writer.publish(arrays_of(2), 2)
        with pytest.raises(InterruptedError):
            writer.publish([arrays_of(3)[0], Failing()], 3)

    views = store.views(writeable=False)
    views[0][0] = Overtaken(views[0][0], overtake)
    assert store.copy_out(0, views) is None
    assert_whole(store.reader(0, never).latest(), 2)


def test_a_version_that_is_announced_while_rings_are_picked_up_is_not_missed(make_store):
    store = make_store(readers=1)
    writer, bell = store.writer(), store.bells[0]
    writer.publish(arrays_of(1), 1)
    reader, pick_up = store.reader(0, never), bell.pick_up

    def announce(*args):
        bell.pick_up = pick_up
        writer.publish(arrays_of(2), 2)
        return pick_up(*args)

    bell.pick_up = announce
    assert_whole(reader.latest(), 2)


def test_a_writer_killed_in_mid_version_leaves_the_one_before(make_store):
    store, said = make_store(), SPAWN.Event()
    process = start(publish_half, store, 5, said)
    assert said.wait(20)
    reader = store.reader(0, never)
    assert_whole(reader.latest(), 5)
    process.kill()
    process.join()
    version, arrays = store.read_any()
    assert version == store.version == 5
    assert_whole(arrays, 5)
    assert reader.latest() is None
    store.writer().publish(arrays_of(6), 6)
    assert_whole(reader.latest(), 6)
    assert reader.have == 6


def test_writers_killed_at_any_moment(make_store):
    store = make_store(LARGE, readers=1, slots=2)
    reader = store.reader(0, patience(60))
    for first in range(0, 4_000_000, 1_000_000):
        process = start(publish_versions, store, first, 1_000_000)
        reader.wait(first)
        for _ in range(5 + first // 500_000):
            assert_whole(reader.wait(reader.have + 1), reader.have)
        process.kill()
        process.join()
        version, arrays = store.read_any()
        assert version >= reader.have
        assert_whole(arrays, version)


def test_a_version_that_was_finished_and_not_announced_is_found(make_store):
    store = make_store()
    writer = store.writer()
    writer.publish(arrays_of(1), 1)
    writer.publish(arrays_of(2), 2)
    store.words[store.count_at] -= 1  # as if it had been killed just before it announced version 2
    reader = store.reader(0, never)
    assert_whole(reader.latest(), 1)
    assert store.read_any()[0] == 2
    successor = store.writer()
    assert_whole(reader.latest(), 2)
    successor.publish(arrays_of(3), 3)
    assert_whole(reader.latest(), 3)


def test_mistakes(make_store):
    store = make_store(readers=1)
    with pytest.raises(UsageError, match="store 'params' holds"):
        store.writer().publish([np.zeros((3, 1), "float32"), np.int64(0)], 0)  # would broadcast
    with pytest.raises(UsageError, match="store 'params' holds"):
        store.writer().publish([np.zeros((3, 4), "float64"), np.int64(0)], 0)
    with pytest.raises(UsageError, match="no reader 1"):
        store.reader(1, never)
    with pytest.raises(UsageError, match="two slots"):
        StoreSpec("params", FIELDS, 1, slots=1)


def test_streams_and_stores_share_an_arena_without_overlap():
    stream_spec = StreamSpec("obs", (Field((4, 3), "float32", 0),), ((0, 4),))
    arena, streams, stores = build_all([stream_spec], [StoreSpec("params", FIELDS, 1)])
    try:
        writer = streams["obs"].writer(0, never)
        writer.slot()[0][:] = 4.0
        writer.publish()
        for version in range(9):
            stores["params"].writer().publish(arrays_of(version), version)
        assert_whole(streams["obs"].reader(never).take(), 4)
        assert_whole(stores["params"].reader(0, never).latest(), 8)
    finally:
        arena.unlink()
