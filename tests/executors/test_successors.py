"""Where the ports of a restarted worker go on: nothing is sent twice, and nobody acts with old parameters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import stand_in

from sherd.runtime.ports import RowsOut, Session, SharedIn
from sherd.runtime.shared import Field
from sherd.runtime.store import StoreSpec, build_all
from sherd.runtime.streams import StreamSpec

FIELDS = (Field((2,), "float32", 0),)


@pytest.fixture
def session() -> Iterator[Session]:
    context = stand_in.context(attempt=1)
    yield Session(context)
    stand_in.free(context)


def array(number: float) -> Any:
    return np.full(2, number, np.float32)


def test_a_synchronous_successor_waits_for_the_parameters_of_its_iteration(session: Session) -> None:
    arena, _, stores = build_all([], [StoreSpec("params", (Field((2,), "float32"),), readers=1)])
    store = stores["params"]
    writer = store.writer()
    for version in (1, 2):
        writer.publish([array(version)], version)
    learner = threading.Timer(0.3, lambda: writer.publish([array(3)], 3))
    learner.start()
    port = SharedIn(store, 0, versioned=True).open(session)
    found = port.resume(3)
    learner.join()
    assert found is not None
    assert found[0].tolist() == [3, 3]
    assert session.version == 3
    writer.publish([array(4)], 4)
    assert port.receive()[0].tolist() == [4, 4]
    arena.unlink()


def test_an_asynchronous_successor_takes_what_there_is(session: Session) -> None:
    arena, _, stores = build_all([], [StoreSpec("params", (Field((2,), "float32"),), readers=1)])
    store = stores["params"]
    store.writer().publish([array(1)], 1)
    found = SharedIn(store, 0, versioned=True, latest=True).open(session).resume(3)
    assert found is not None
    assert found[0].tolist() == [1, 1]
    arena.unlink()


def test_what_the_predecessor_sent_is_not_sent_again(session: Session) -> None:
    """It died between two messages of an iteration: the first was sent, and the second was not."""
    spec = [StreamSpec(name, FIELDS, ((0, 2),), slots=4) for name in ("memory", "rollout")]
    arena, streams, _ = build_all(spec)
    wires = [RowsOut(((stream, 0, 0, 2),), (0,)) for stream in streams.values()]
    before = [wire.open(session) for wire in wires]
    before[0].send([array(0)])
    before[1].send([array(0)])
    before[0].send([array(1)])
    made = min(port.published for port in (wire.open(session) for wire in wires))
    assert made == 1
    after = [wire.open(session) for wire in wires]
    for port in after:
        port.resume(made)
    for iteration in (1, 2):
        for port in after:
            port.send([array(iteration)])
    assert [port.published for port in after] == [3, 3]
    for stream in streams.values():
        reader = stream.reader(lambda: None)
        assert [reader.take()[0][0] for _ in range(3)] == [0, 1, 2]
    arena.unlink()
