"""Lanes: whoever is ready fills the batch, and what is too old is dropped and counted."""

from __future__ import annotations

import numpy as np
import pytest
import stand_in

from sherd.runtime.lanes import LanesIn
from sherd.runtime.ports import Session
from sherd.runtime.shared import Field
from sherd.runtime.streams import StreamSpec, build_streams

ROWS = 2


class Fleet:
    """Two or three lanes that send what they are told, and the gate they send to."""

    def __init__(self, lanes=2, messages=1, max_staleness=3, rows=ROWS):
        names = [[f"m{m}@{lane}" for lane in range(lanes)] for m in range(messages)]
        flat = [name for some in names for name in some]
        field = Field((4, rows), "float32", 1) if rows else Field((1, 3), "float32", 0)
        ranges = ((0, rows),) if rows else ((0, 1),)
        self.arena, streams = build_streams([StreamSpec(n, (field,), ranges) for n in flat], {"gate": flat})
        self.context = stand_in.context()
        self.session = Session(self.context)
        self.writers = [[streams[n].writer(0, lambda: None) for n in some] for some in names]
        wire = LanesIn(
            tuple(tuple(streams[n] for n in some) for some in names),
            ((1,),) * messages,
            rows,
            steps_per_lane=4 * ROWS,
            max_staleness=max_staleness,
        )
        self.gate = wire.open(self.session)

    def send(self, lane, value, tag=0, message=0):
        writer = self.writers[message][lane]
        writer.slot()[0][:] = value
        writer.publish(tag)

    def close(self):
        stand_in.free(self.context)
        self.arena.unlink()


@pytest.fixture
def fleet():
    made = []

    def build(**options):
        made.append(Fleet(**options))
        return made[-1]

    yield build
    for one in made:
        one.close()


def test_every_lane_fills_its_own_place(fleet):
    one = fleet()
    one.send(1, 11.0)
    one.send(0, 10.0)
    (batch,) = one.gate.port(0).receive()
    np.testing.assert_array_equal(batch, np.repeat([[10, 10, 11, 11]], 4, axis=0))


def test_a_fast_lane_fills_the_place_of_a_slow_one(fleet):
    one = fleet()
    one.send(1, 1.0)
    one.send(1, 2.0)
    (batch,) = one.gate.port(0).receive()
    assert sorted(batch[0].tolist()) == [1, 1, 2, 2]
    assert batch[0, 2] == 1  # the first to come has its own place


def test_what_is_too_old_is_dropped_counted_and_replaced(fleet):
    one = fleet(max_staleness=1)
    one.session.version = 5
    one.send(0, -1.0, tag=3)
    one.send(0, 1.0, tag=4)
    one.send(1, 2.0, tag=5)
    (batch,) = one.gate.port(0).receive()
    assert batch.min() == 1
    assert one.session.dropped == {0: 4 * ROWS}
    assert one.session.used == {0: 4 * ROWS, 1: 4 * ROWS}
    assert sorted(one.session.ages) == [0, 1]


def test_messages_of_one_lane_stay_together(fleet):
    one = fleet(messages=2)
    one.send(0, 1.0, message=0)
    one.send(1, 3.0, message=0)
    one.send(1, 4.0, message=1)
    one.send(0, 2.0, message=1)
    first, second = one.gate.port(0), one.gate.port(1)
    np.testing.assert_array_equal(second.receive()[0][0], [2, 2, 4, 4])
    np.testing.assert_array_equal(first.receive()[0][0], [1, 1, 3, 3])


def test_gradients_are_taken_one_by_one(fleet):
    one = fleet(rows=0)
    one.send(1, 7.0)
    one.send(0, 8.0)
    port = one.gate.port(0)
    assert [port.receive()[0].tolist(), port.receive()[0].tolist()] == [[7] * 3, [8] * 3]


def test_a_batch_does_not_change_when_its_senders_go_on(fleet):
    """What SRL's stream got wrong: stored actions changed after the fact."""
    one = fleet()
    one.send(0, 1.0)
    one.send(1, 2.0)
    (batch,) = one.gate.port(0).receive()
    before = batch.copy()
    for value in (5.0, 6.0):
        one.send(0, value)
        one.send(1, value)
    np.testing.assert_array_equal(batch, before)
