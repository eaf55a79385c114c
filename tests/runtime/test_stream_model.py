"""A stream beside a model of it: any interleaving of its ends' steps, restarts included."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_children import assert_message, never, spec_of, value

from sherd.runtime import shared
from sherd.runtime.shared import Closed
from sherd.runtime.streams import build_streams


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
