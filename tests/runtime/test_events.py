"""The sinks' plumbing, strict JSON and the list of metrics."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sherd.errors import UsageError
from sherd.runtime.events import METRICS, MemorySink, RunInfo, Sinks, metrics_reference, tag, to_json
from sherd.runtime.status import FragmentStatus

INFO = RunInfo("ppo", "CartPole-v1", "single", "inline", 1, 8, 1000, 64)


class Recorder:
    """Writes down every call; fails on close if told to."""

    def __init__(self, name: str, calls: list[tuple[Any, ...]], fails: bool = False) -> None:
        self.name, self.calls, self.fails = name, calls, fails

    def start(self, info: RunInfo) -> None:
        self.calls.append((self.name, "start", info))

    def iteration(self, row: dict[str, float]) -> None:
        self.calls.append((self.name, "iteration", row))

    def note(self, text: str) -> None:
        self.calls.append((self.name, "note", text))

    def finish(self, summary: dict[str, Any]) -> None:
        self.calls.append((self.name, "finish", summary))

    def close(self) -> None:
        self.calls.append((self.name, "close"))
        if self.fails:
            raise OSError(f"{self.name} failed")


def strict(text: str) -> Any:
    """Parse JSON, refusing the NaN and Infinity that Python's own parser lets through."""

    def refuse(constant: str) -> None:
        raise ValueError(f"not JSON: {constant}")

    return json.loads(text, parse_constant=refuse)


def test_sinks_pass_every_event_to_every_sink() -> None:
    calls: list[tuple[Any, ...]] = []
    sinks = Sinks([Recorder("a", calls), Recorder("b", calls)])
    sinks.start(INFO)
    sinks.iteration({"steps": 1})
    sinks.note("slow")
    sinks.finish({"steps": 1})
    events = [("start", INFO), ("iteration", {"steps": 1}), ("note", "slow"), ("finish", {"steps": 1})]
    assert calls == [(name, *event) for event in events for name in ("a", "b")]


def test_fragments_reach_the_sinks_that_take_them() -> None:
    calls: list[tuple[Any, ...]] = []
    first, last = MemorySink(), MemorySink()
    sinks = Sinks([first, Recorder("without the method", calls), last])  # type: ignore[list-item]
    for rate in (1.0, 2.0):
        picture = [FragmentStatus("actors", "actor", 2, rate, "steps/s", 0.9, 0.1, 0.0)]
        sinks.fragments(picture)
    assert calls == []
    assert first.statuses == last.statuses == picture


def test_one_failing_close_does_not_keep_the_others_open() -> None:
    calls: list[tuple[Any, ...]] = []
    sinks = Sinks([Recorder("a", calls), Recorder("b", calls, fails=True), Recorder("c", calls)])
    with pytest.raises(OSError, match="b failed"):
        sinks.close()
    assert sorted(call[0] for call in calls) == ["a", "b", "c"]


def test_memory_fills_missing_cells_with_nan() -> None:
    sink = MemorySink()
    for row in ({"steps": 1}, {"steps": 2, "loss": 0.5}, {"loss": float("nan")}):
        sink.iteration(row)
    arrays = sink.arrays()
    np.testing.assert_array_equal(arrays["steps"], [1, 2, math.nan])
    np.testing.assert_array_equal(arrays["loss"], [math.nan, 0.5, math.nan])
    assert list(arrays) == ["steps", "loss"]
    assert all(array.dtype == np.float64 for array in arrays.values())
    assert MemorySink().arrays() == {}


def test_memory_keeps_notes_and_summary() -> None:
    sink = MemorySink()
    sink.start(INFO)
    sink.note("restarted")
    sink.finish({"steps": 5})
    sink.close()
    assert (sink.notes, sink.summary) == (["restarted"], {"steps": 5})


def test_run_info_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        INFO.seed = 2  # type: ignore[misc]


def test_reference_lists_every_metric_once() -> None:
    lines = metrics_reference().splitlines()[2:]
    assert [line.split("`")[1] for line in lines] == list(METRICS)
    assert all(METRICS[line.split("`")[1]] in line for line in lines)
    tags = [tag(name) for name in METRICS]
    assert len(set(tags)) == len(tags)


@dataclass(frozen=True)
class Config:
    rate: float
    path: Path


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), None),
        (np.float32("nan"), None),
        (jnp.asarray([1.0, math.nan]), [1.0, None]),
        (np.asarray(1.5, ml_dtypes.bfloat16), 1.5),
        (np.asarray([0.5, math.inf], ml_dtypes.bfloat16), [0.5, None]),
        (np.bool_(True), True),
        ({1: (2, {3})}, {"1": [2, [3]]}),
        (Config(0.5, Path("runs/a")), {"rate": 0.5, "path": "runs/a"}),
    ],
)
def test_json_of_what_runs_hold(value: Any, expected: Any) -> None:
    assert strict(to_json(value)) == expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
@settings(deadline=None)
def test_json_is_always_strict_and_loses_only_what_json_cannot_say(value: Any) -> None:
    def nulled(item: Any) -> Any:
        if isinstance(item, float) and not math.isfinite(item):
            return None
        if isinstance(item, list):
            return [nulled(part) for part in item]
        if isinstance(item, dict):
            return {key: nulled(part) for key, part in item.items()}
        return item

    assert strict(to_json(value)) == nulled(value)


def test_json_refuses_what_it_cannot_write() -> None:
    with pytest.raises(UsageError, match="Recorder cannot be written as JSON"):
        to_json({"sink": Recorder("a", [])})
