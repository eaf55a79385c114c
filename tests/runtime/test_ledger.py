"""The ledger: it balances whatever happens to samples, and notices a single one that is lost."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sherd.errors import RunError
from sherd.runtime.events import to_json
from sherd.runtime.ledger import Ledger, StreamCounts

# (stream, what happens, how many steps)
events_of = st.lists(
    st.tuples(
        st.integers(0, 2), st.sampled_from(["produce", "consume", "stale", "shutdown"]), st.integers(1, 99)
    )
)


def play(events: list[tuple[int, str, int]]) -> Ledger:
    """Streams as real queues of rollouts; what is in flight is what lies in them, not what is left over."""
    queues: list[deque[int]] = [deque() for _ in range(3)]
    streams = [StreamCounts(name=f"rollouts {index}") for index in range(3)]
    for index, what, steps in events:
        stream, queue = streams[index], queues[index]
        if what == "produce":
            queue.append(steps)
            stream.produced += steps
        elif queue and what == "consume":
            stream.consumed += queue.popleft()
        elif queue:
            stream.drop(what, queue.popleft())
    for stream, queue in zip(streams, queues):
        stream.in_flight = sum(queue)
    return Ledger.of(streams)


@given(events_of)
@settings(deadline=None)
def test_it_balances_whatever_happens(events: list[tuple[int, str, int]]) -> None:
    ledger = play(events)
    ledger.check()
    assert ledger.balance() == 0
    assert ledger.produced == sum(steps for _, what, steps in events if what == "produce")
    assert ledger.produced == ledger.consumed + sum(ledger.dropped.values()) + ledger.in_flight
    assert str(ledger).splitlines()[-1].startswith("balanced: ")


@given(events_of, st.sampled_from(["produced", "consumed", "in_flight"]), st.sampled_from([-1, 1, 128]))
@settings(deadline=None)
def test_one_lost_or_doubled_sample_is_noticed(
    events: list[tuple[int, str, int]], field: str, error: int
) -> None:
    for place in (0, 3):
        ledger = play(events)
        counts = [*ledger.streams, ledger][place]
        setattr(counts, field, getattr(counts, field) + error)
        missing = error if field == "produced" else -error
        assert counts.balance() == missing
        word = "missing" if missing > 0 else "counted twice"
        where = "in total" if counts is ledger else "in rollouts 0"
        with pytest.raises(RunError, match=f"{word} {where}\n"):
            ledger.check()
        assert f"{word} {where}" in str(ledger).splitlines()[-1]


def test_a_negative_count_is_wrong_even_if_it_balances() -> None:
    with pytest.raises(RunError, match="a count is negative in total"):
        Ledger(produced=3, consumed=4, in_flight=-1).check()
    with pytest.raises(RunError, match="a count is negative in total"):
        Ledger(produced=3, consumed=4, dropped={"stale": -1}).check()


def test_the_error_shows_every_number() -> None:
    stream = StreamCounts(name="rollouts of actors", produced=1_000_000, consumed=999_000, in_flight=488)
    with pytest.raises(RunError) as caught:
        Ledger.of([stream]).check()
    assert str(caught.value).splitlines() == [
        "the ledger of samples does not balance, 512 steps are missing in total; "
        "512 steps are missing in rollouts of actors",
        "environment steps     produced    consumed     dropped   in flight",
        "rollouts of actors   1,000,000     999,000           0         488",
        "total                1,000,000     999,000           0         488",
        "  fix: none on your side, this is a defect of Sherd; please report it with these numbers",
    ]


@given(events_of)
@settings(deadline=None)
def test_plain_data_keeps_every_count(events: list[tuple[int, str, int]]) -> None:
    ledger = play(events)
    read: dict[str, Any] = json.loads(ledger.to_json())
    assert read == ledger.as_dict() == json.loads(to_json(ledger.as_dict()))
    assert read.pop("balance") == 0
    streams = [StreamCounts(**line) for line in read.pop("streams")]
    assert Ledger(**read, streams=streams) == ledger == Ledger.of(streams)


def test_counts_may_come_from_arrays() -> None:
    ledger = Ledger(np.int64(5), np.int64(3), {"stale": np.int64(1)}, np.int64(1))  # type: ignore[arg-type]
    ledger.check()
    assert json.loads(ledger.to_json())["produced"] == 5


def test_reasons_are_added_up_and_said() -> None:
    first, second = StreamCounts(name="a", produced=9), StreamCounts(name="b", produced=2_000)
    first.drop("stale", 4)
    first.drop("stale", 5)
    second.drop("stale", 1)
    second.drop("left at the end", 1_999)
    ledger = Ledger.of([first, second])
    assert ledger.dropped == {"stale": 10, "left at the end": 1_999}
    assert str(ledger).splitlines()[-2:] == [
        "dropped: 1,999 left at the end, 10 stale",
        "balanced: produced = consumed + dropped + in flight",
    ]
    assert "dropped:" not in str(Ledger())
