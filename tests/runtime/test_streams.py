"""Streams: every message once, in order, whole, and never changed while somebody holds it."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from stream_children import (
    SPAWN,
    assert_message,
    never,
    patience,
    put,
    spec_of,
    start,
    take_and_keep,
    value,
    write_half,
    write_messages,
)

from sherd.errors import UsageError
from sherd.runtime import shared, stream_ends
from sherd.runtime.shared import Closed, Field
from sherd.runtime.streams import AnyReader, StreamSpec, build_streams


@pytest.fixture
def build():
    arenas = []

    def make(*specs, groups=None):
        arena, streams = build_streams(specs, groups)
        arenas.append(arena)
        return list(streams.values())

    yield make
    for arena in arenas:
        arena.close()
        arena.unlink()


def test_three_processes_write_one_batch(build):
    (stream,) = build(spec_of(writers=3))
    processes = [start(write_messages, stream, index, 300) for index in range(3)]
    reader = stream.reader(patience())
    for number in range(300):
        assert_message(reader.take(), 3, number)
        assert reader.tags == [number] * 3
        reader.release()
    for process in processes:
        process.join(10)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert not reader.ready()


def test_what_a_reader_holds_does_not_change_while_the_writer_races_ahead(build):
    (stream,) = build(spec_of(slots=3))
    process = start(write_messages, stream, 0, 10)
    reader = stream.reader(patience())
    held = [reader.take(), reader.take()]
    while stream.counts().published < 3:  # as far as it can get: one free slot
        time.sleep(0.01)
    time.sleep(0.1)
    assert stream.counts().published == 3
    assert_message(held[0], 1, 0)
    assert_message(held[1], 1, 1)
    reader.release()
    assert_message(reader.take(), 1, 2)
    while stream.counts().published < 4:
        time.sleep(0.01)
    assert_message(held[0], 1, 3)  # released: it is the writer's again
    assert_message(held[1], 1, 1)  # not yet released
    process.kill()
    process.join()


def test_views_are_read_only_for_ever(build):
    (stream,) = build(spec_of())
    put(stream.writer(0, never), 1)
    array = stream.reader(never).take()[0]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_only_writer_0_can_write_a_field_without_rows(build):
    (stream,) = build(StreamSpec("s", (Field((3,), "int64"),), ((0, 1), (1, 2))))
    stream.writer(0, never).slot()[0][:] = 7
    other = stream.writer(1, never).slot()[0]
    assert other.tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match="read-only"):
        other[0] = 1


def test_a_writer_killed_in_mid_message_is_never_seen_and_its_successor_goes_on(build):
    (stream,) = build(spec_of(rows_each=4))
    said = SPAWN.Event()
    first = start(write_half, stream, 0, said)
    assert said.wait(20)
    first.kill()
    first.join()
    reader = stream.reader(patience())
    assert (reader.take()[0] == value(0, 0)).all()
    assert not reader.ready()
    second = start(write_messages, stream, 0, 3)
    for number in (1, 2):
        reader.release()
        arrays = reader.take()
        assert (arrays[0] == value(0, number)).all()
        assert reader.tags == [number]
    second.join(10)
    assert second.exitcode == 0


def test_a_killed_reader_s_successor_takes_again_what_was_not_released(build):
    (stream,) = build(spec_of(slots=1))
    said = SPAWN.Event()
    put(stream.writer(0, never), value(0, 0))
    process = start(take_and_keep, stream, said)
    assert said.wait(20)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert stream.counts().taken == 1
    reader = stream.reader(never)
    assert reader.taken == 0
    assert_message(reader.take(), 1, 0)
    reader.release()
    assert stream.writer(0, never).ready()


def waiting(work):
    """A thread that has begun to wait."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()
    return thread


def lose_ring(stream):
    """Count a message and do not ring, as a writer killed in between would leave it."""
    stream.arena.words[stream.word(stream.layout.published[0])] += 1


@pytest.mark.parametrize("tick", [60.0, 0.3])
def test_a_lost_ring_costs_a_tick_or_a_wake(build, monkeypatch, tick):
    monkeypatch.setattr(shared, "TICK", tick)
    (stream,) = build(spec_of())
    thread = waiting(stream.reader(lambda: None).take)
    lose_ring(stream)
    if tick == 60.0:
        time.sleep(0.1)
        assert thread.is_alive()  # nobody rang
        stream.wake()
    thread.join(5)
    assert not thread.is_alive()


def test_a_release_wakes_a_waiting_writer_and_a_publish_a_waiting_reader(build, monkeypatch):
    monkeypatch.setattr(shared, "TICK", 60.0)
    (stream,) = build(spec_of(slots=1))
    reader, writer = stream.reader(lambda: None), stream.writer(0, lambda: None)
    thread = waiting(reader.take)
    put(writer, 0)
    thread.join(5)
    assert not thread.is_alive()
    thread = waiting(writer.slot)
    reader.release()
    thread.join(5)
    assert not thread.is_alive()
    assert reader.waited > 0.05
    assert writer.waited > 0.05


def test_a_wait_ends_when_the_watch_raises(build):
    (stream,) = build(spec_of(slots=1))
    with pytest.raises(Closed):
        stream.reader(never).take()
    writer = stream.writer(0, never)
    put(writer, 0)
    with pytest.raises(Closed):
        writer.slot()
    with pytest.raises(Closed):
        shared.Bell().wait(never)


def test_a_message_that_came_is_taken_before_the_watch_can_end_the_wait(build):
    (stream,) = build(spec_of())
    writer, (bell,) = stream.writer(0, never), stream.full
    bell.pick_up = lambda *_: put(writer, 5)  # it arrives while the reader sleeps
    assert (stream.reader(never).take()[0] == 5).all()


def test_the_fence_for_other_processors_keeps_everything_working(build, monkeypatch):
    monkeypatch.setattr(stream_ends, "fence", shared.fence_by_lock)
    (stream,) = build(spec_of())
    writer, reader = stream.writer(0, never), stream.reader(never)
    put(writer, 5)
    assert (reader.take()[0] == 5).all()
    reader.release()


def test_rings_that_nobody_had_to_wait_for_do_not_pile_up(build):
    (stream,) = build(spec_of())
    writer, reader = stream.writer(0, never), stream.reader(never)
    for number in range(100):
        put(writer, number)
        reader.take()
        reader.release()
    for bell in (*stream.full, *stream.free):
        left = 0
        while bell.pick_up(False):
            left += 1
        assert left <= stream.spec.slots


def test_any_reader_gives_the_longest_waiting_first(build):
    names = ["a", "b", "c"]
    streams = build(*(spec_of(name=name) for name in names), groups={"learner": names})
    writers = [stream.writer(0, never) for stream in streams]
    inbox = AnyReader(streams, never)
    with pytest.raises(Closed):
        inbox.take_ready()
    for index in (2, 0):
        put(writers[index], index)
    assert inbox.take_ready() == [2, 0]
    assert inbox.take_ready(least=2) == [2, 0]
    with pytest.raises(Closed):
        inbox.take_ready(least=3)
    assert inbox.readers[2].take()[0][0, 0] == 2
    inbox.readers[2].release()
    put(writers[2], 2)
    put(writers[1], 1)
    assert inbox.take_ready() == [0, 2, 1]


def test_any_reader_takes_all_that_processes_send(build, monkeypatch):
    monkeypatch.setattr(shared, "TICK", 5.0)  # here only: a lost wake-up would show as a test of minutes
    names = ["a", "b"]
    streams = build(*(spec_of(name=name) for name in names), groups={"learner": names})
    processes = [start(write_messages, stream, 0, 200) for stream in streams]
    inbox, seen = AnyReader(streams, patience()), [0, 0]
    while sum(seen) < 400:
        for index in inbox.take_ready():
            assert_message(inbox.readers[index].take(), 1, seen[index])
            inbox.readers[index].release()
            seen[index] += 1
    assert seen == [200, 200]
    for process in processes:
        process.join(10)


def test_fresh_memory_holds_magic_values(build):
    fields = (Field((2,), "float16"), Field((2,), "int8"), Field((2,), "uint8"), Field((2,), "bool"))
    (stream,) = build(StreamSpec("s", fields, ((0, 1),)))
    real, signed, unsigned, truth = stream.writer(0, never).slot()
    assert np.isnan(real).all()
    assert (signed == -128).all()
    assert (unsigned == 255).all()
    assert truth.view("uint8").tolist() == [1, 1]
    assert all(array.ctypes.data % 64 == 0 for array in (real, signed, unsigned, truth))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: StreamSpec("s", (Field((4,), "int32", 0),), ((0, 2), (1, 4))),
        lambda: StreamSpec("s", (Field((4,), "int32", 0),), ((0, 2), (2, 3))),
        lambda: StreamSpec("s", (), ()),
        lambda: StreamSpec("s", (), ((0, 1),), slots=0),
    ],
)
def test_mistakes_in_a_spec(mistake):
    with pytest.raises(UsageError, match="stream 's'"):
        mistake()


def test_mistakes_in_use(build):
    stream, other = build(spec_of(slots=1), spec_of(name="other"))
    writer, reader = stream.writer(0, never), stream.reader(never)
    with pytest.raises(UsageError, match="without slot"):
        writer.publish()
    with pytest.raises(UsageError, match="without take"):
        reader.release()
    put(writer, 1)
    reader.take()
    with pytest.raises(UsageError, match="release\\(\\) one first"):
        reader.take()
    with pytest.raises(UsageError, match="no writer 1"):
        stream.writer(1, never)
    with pytest.raises(UsageError, match="group"):
        AnyReader([stream, other], never)
