"""Streams: every message once, in order, whole, and never changed while somebody holds it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_children import SPAWN, patience, start, take_and_keep, value, write_half, write_messages

from sherd.errors import RunError, UsageError
from sherd.runtime import shared
from sherd.runtime.shared import Arena, Closed, Field
from sherd.runtime.streams import AnyReader, StreamSpec, build_streams

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /dev/shm and /proc")


def never():
    raise Closed


def spec_of(writers=1, slots=2, name="rollouts", rows_each=2):
    """Two fields: one with the environments in front, one with time in front."""
    rows = tuple((i * rows_each, (i + 1) * rows_each) for i in range(writers))
    total = writers * rows_each
    fields = (Field((total, 3), "float32", 0), Field((5, total), "int32", 1))
    return StreamSpec(name, fields, rows, slots)


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


def put(writer, number, tag=0):
    for array in writer.slot():
        array[...] = number
    writer.publish(tag)


def expected(writers, number, rows_each=2):
    return np.repeat([value(writer, number) for writer in range(writers)], rows_each)


def assert_message(arrays, writers, number):
    rows = expected(writers, number)
    np.testing.assert_array_equal(arrays[0], np.repeat(rows[:, None], 3, 1))
    np.testing.assert_array_equal(arrays[1], np.repeat(rows[None], 5, 0))


class Model:
    """A stream beside what it should be: any step is made if it would not block, and then checked."""

    def __init__(self, stream):
        self.stream, self.writers = stream, len(stream.spec.rows)
        self.published, self.taken, self.released = [0] * self.writers, 0, 0
        self.ends = [stream.writer(index, never) for index in range(self.writers)]
        self.reader, self.held = stream.reader(never), []

    def write(self, index):
        writer, number = self.ends[index], self.published[index]
        free = number < self.released + self.stream.spec.slots
        assert writer.ready() == free
        if free:
            for array in writer.slot():
                array[...] = value(index, number)
            assert writer.slot()[0] is writer.slot()[0]
            writer.publish(tag=number)
            self.published[index] += 1
            assert writer.published == self.published[index]
        else:
            with pytest.raises(Closed):
                writer.slot()

    def take(self):
        there = min(self.published) > self.taken
        assert self.reader.ready() == there
        if there:
            self.held.append((self.taken, self.reader.take()))
            assert self.reader.tags == [self.taken] * self.writers
            self.taken += 1

    def release(self):
        if self.held:
            self.reader.release()
            self.held.pop(0)
            self.released += 1

    def restart_writer(self, index):
        self.ends[index] = self.stream.writer(index, never)

    def restart_reader(self):
        self.reader, self.held, self.taken = self.stream.reader(never), [], self.released

    def check(self):
        for number, arrays in self.held:
            assert_message(arrays, self.writers, number)
        counts = self.stream.counts()
        assert (counts.published, counts.taken) == (min(self.published), self.taken)
        assert counts.released == self.released
        assert counts.fill == (min(self.published) - self.released) / self.stream.spec.slots


STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "write", "restart_writer"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["take", "take", "release", "release", "restart_reader"])),
)


@settings(max_examples=150, deadline=None)
@given(writers=st.integers(1, 3), slots=st.integers(1, 4), steps=st.lists(STEPS, max_size=60))
def test_any_interleaving_delivers_every_message_once_in_order_and_whole(writers, slots, steps):
    tick, shared.TICK = (
        shared.TICK,
        0.0001,
    )  # waits that must block are tried too, and end with one look
    arena, streams = build_streams([spec_of(writers, slots)])
    try:
        model = Model(streams["rollouts"])
        for step, *index in steps:
            getattr(model, step)(*(i % writers for i in index))
            model.check()
    finally:
        shared.TICK = tick
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


@linux
def test_too_little_shared_memory_is_an_error_not_a_death():
    room = os.statvfs("/dev/shm")
    with pytest.raises(RunError, match="--shm-size"):
        Arena.create(room.f_blocks * room.f_frsize + 2**30)
    assert not list(Path("/dev/shm").glob(f"sherd-{os.getpid()}-*"))


@linux
def test_an_arena_closes_while_views_are_held_and_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        arena = Arena.create(100)
        view = arena.array(0, (4,), "float32")
        arena.close()
        arena.unlink()
        arena.unlink()
        view[:] = 1.0
        del arena, view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert not list(Path("/dev/shm").glob(f"sherd-{os.getpid()}-*"))


SCRIPT = """
import os, signal, sys, time
sys.path[:0] = {path!r}
from stream_children import SPAWN, start, wait_for_ever
from sherd.runtime.shared import Field
from sherd.runtime.streams import StreamSpec, build_streams

if __name__ == "__main__":
    specs = [StreamSpec(str(i), (Field((4,), "float32", 0),), ((0, 4),)) for i in range(3)]
    arena, streams = build_streams(specs)
    events = [SPAWN.Event() for _ in specs]
    children = [start(wait_for_ever, streams[str(i)], events[i]) for i in range(3)]
    for event in events:
        event.wait(20)
    bells = [bell for stream in streams.values() for bell in stream.full + stream.free]
    names = [arena.name] + ["sem." + bell._semaphore._semlock.name.strip("/") for bell in bells]
    print(" ".join(names + [str(child.pid) for child in children]), flush=True)
    if {die}:
        time.sleep(60)
    os.kill(children[0].pid, signal.SIGKILL)
    for child in children:
        child.kill()
        child.join()
"""


def run_script(tmp_path, die):
    """The script's process, what it shares by name, and its children."""
    file = tmp_path / "parent.py"
    file.write_text(SCRIPT.format(path=[str(Path(__file__).parent.parent / "support")], die=die))
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, str(file)], stdout=pipe, stderr=pipe, text=True)
    *names, a, b, c = parent.stdout.readline().split()
    return parent, [Path("/dev/shm") / name for name in names], [int(a), int(b), int(c)]


@linux
def test_nothing_is_left_and_nothing_is_said_after_an_ordinary_end(tmp_path):
    parent, shared_files, _ = run_script(tmp_path, die=False)
    _, complaints = parent.communicate(timeout=30)
    assert complaints == ""
    assert parent.returncode == 0
    assert not [file for file in shared_files if file.exists()]


@linux
def test_nothing_is_left_after_the_parent_was_killed(tmp_path):
    parent, shared_files, children = run_script(tmp_path, die=True)
    assert len(shared_files) == 7
    assert all(file.exists() for file in shared_files)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(file.exists() for file in shared_files):
        time.sleep(0.05)
    assert not [file for file in shared_files if file.exists()]
    assert not [pid for pid in children if Path(f"/proc/{pid}/cmdline").exists() and alive(pid)]
    parent.stdout.close()
    parent.stderr.close()


def alive(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
