"""What a run reports while it runs, and the sinks that take it.

A training iteration ends in one *row*: a dict of numbers. A sink does one thing with rows (draw them, write
them, keep them), and a run talks to exactly one sink: `Sinks`, which passes everything on.
"""

from __future__ import annotations

import dataclasses
import json
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sherd.errors import UsageError
from sherd.runtime.status import FragmentStatus

Row = dict[str, float]

# The one list of metrics: name -> meaning and unit. The documentation's page is generated from it.
METRICS: dict[str, str] = {
    "iteration": "number of the training iteration, counted from 1",
    "steps": "environment steps learnt from so far, over all environments; the x axis of every chart",
    "seconds": "wall-clock time since the run started, in seconds",
    "steps_per_second": "environment steps per second of wall-clock time, learning included",
    "episode_return": "mean undiscounted sum of rewards of the episodes that ended in this iteration",
    "episode_length": "mean length of the episodes that ended in this iteration, in steps",
    "episodes": "how many episodes ended in this iteration",
    "loss": "the scalar whose gradient the learner follows, averaged over the iteration's minibatches",
    "policy_loss": "the part of the loss that improves the policy",
    "value_loss": "the part of the loss that fits the value function, before its coefficient",
    "entropy": "mean entropy of the policy's action distribution, in nats",
    "approx_kl": "estimated divergence of the new policy from the one that acted, in nats",
    "clip_fraction": "share of samples whose probability ratio was clipped, from 0 to 1",
    "grad_norm": "global norm of the gradient, before clipping",
    "update_scale": "factor on every update, from the schedule: 1 is the optimiser's own step size",
    "restarts": "how many workers were restarted so far",
    "staleness": "mean age, in parameter versions, of the samples learnt from; asynchronous runs only",
    "dropped": "environment steps dropped in this iteration because they were too old",
}

# Only runs of several processes have these.
PROCESS_METRICS = ("restarts", "staleness", "dropped")
_TIME = ("iteration", "seconds", "steps_per_second")


@dataclass(frozen=True)
class RunInfo:
    """What a sink may want to show of a run before its first row."""

    algorithm: str
    env: str
    policy: str
    executor: str
    seed: int
    envs: int
    steps: int
    steps_per_iteration: int
    run_dir: Path | None = None


class Sink(Protocol):
    """Takes a run's events: `start` once, `iteration` often, `finish` if all went well, `close` always."""

    def start(self, info: RunInfo) -> None:
        """The run begins."""

    def iteration(self, row: Row) -> None:
        """One training iteration ended; `row` is not changed afterwards."""

    def note(self, text: str) -> None:
        """Something a person should read happened."""

    def fragments(self, statuses: Sequence[FragmentStatus]) -> None:
        """How each fragment fares, about once a second; only in runs of several processes."""

    def finish(self, summary: dict[str, Any]) -> None:
        """The run reached its end."""

    def close(self) -> None:
        """Give back files and the terminal, whatever happened; a second call does nothing."""


class Sinks:
    """Several sinks as one; `close` closes every one of them, even if one fails.

    >>> memory = MemorySink()
    >>> Sinks([memory]).iteration({"steps": 8})
    >>> memory.arrays()["steps"].tolist()
    [8.0]
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)

    def start(self, info: RunInfo) -> None:
        """Pass the start on."""
        for sink in self._sinks:
            sink.start(info)

    def iteration(self, row: Row) -> None:
        """Pass the row on."""
        for sink in self._sinks:
            sink.iteration(row)

    def note(self, text: str) -> None:
        """Pass the note on."""
        for sink in self._sinks:
            sink.note(text)

    def fragments(self, statuses: Sequence[FragmentStatus]) -> None:
        """Pass the picture on to the sinks that take it; one written before there were fragments need not."""
        for sink in self._sinks:
            take = getattr(sink, "fragments", None)
            if take is not None:
                take(statuses)

    def finish(self, summary: dict[str, Any]) -> None:
        """Pass the summary on."""
        for sink in self._sinks:
            sink.finish(summary)

    def close(self) -> None:
        """Close every sink, the last first."""
        with ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.close)


class MemorySink:
    """Keeps the numbers of every row, what was noted and summed up, and the last picture of the fragments.

    Numbers are kept in columns: a run of days makes millions of rows, and a dictionary of each would fill the
    memory.

    >>> sink = MemorySink()
    >>> sink.iteration({"steps": 8})
    >>> sink.iteration({"steps": 16, "episode_return": 3.0})
    >>> sink.arrays()["episode_return"]
    array([nan,  3.])
    """

    def __init__(self) -> None:
        self._count = 0
        self._columns: dict[str, array[float]] = {}
        self.notes: list[str] = []
        self.statuses: Sequence[FragmentStatus] = ()
        self.summary: dict[str, Any] = {}

    def start(self, info: RunInfo) -> None:
        """Nothing to prepare."""

    def iteration(self, row: Row) -> None:
        """Keep the row's numbers."""
        for name in row:
            if name not in self._columns:
                self._columns[name] = array("d", [math.nan] * self._count)
        for name, column in self._columns.items():
            column.append(number(row.get(name)))
        self._count += 1

    def note(self, text: str) -> None:
        """Keep the note."""
        self.notes.append(text)

    def fragments(self, statuses: Sequence[FragmentStatus]) -> None:
        """Keep the picture, in place of the one before."""
        self.statuses = statuses

    def finish(self, summary: dict[str, Any]) -> None:
        """Keep the summary."""
        self.summary = summary

    def close(self) -> None:
        """Nothing to give back."""

    def arrays(self) -> dict[str, np.ndarray]:
        """One array per column, as long as there are rows; NaN where a row lacks the column."""
        return {name: np.array(column) for name, column in self._columns.items()}


def number(value: Any) -> float:
    """The value as a float; NaN for whatever is missing or is not a number.

    >>> number(3), number(None), number("fast")
    (3.0, nan, nan)
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def tag(name: str) -> str:
    """The grouped name of a metric, as TensorBoard shows it.

    >>> tag("episode_return"), tag("episodes"), tag("seconds"), tag("entropy"), tag("restarts")
    ('episode/return', 'episode/count', 'time/seconds', 'loss/entropy', 'processes/restarts')
    """
    if name.startswith("fragment/"):
        return name
    if name in PROCESS_METRICS:
        return "processes/" + name
    if name == "episodes":
        return "episode/count"
    if name.startswith("episode_"):
        return "episode/" + name.removeprefix("episode_")
    return ("time/" if name in _TIME else "loss/") + name


def metrics_reference() -> str:
    """The metrics and their meanings as a Markdown table.

    >>> print(metrics_reference().splitlines()[2])
    | `iteration` | `time/iteration` | number of the training iteration, counted from 1 |
    """
    lines = ["| metric | in TensorBoard | meaning |", "|---|---|---|"]
    for name, meaning in METRICS.items():
        shown = "(x axis)" if name == "steps" else f"`{tag(name)}`"
        lines.append(f"| `{name}` | {shown} | {meaning} |")
    return "\n".join(lines) + "\n"


def to_json(value: Any, indent: int | None = None) -> str:
    """Strictly valid JSON: NaN and infinities become null; arrays, paths and dataclasses are understood.

    >>> to_json({"return": float("nan"), "shape": np.arange(2), "seed": np.int32(3)})
    '{"return": null, "shape": [0, 1], "seed": 3}'
    """
    return json.dumps(_plain(value), allow_nan=False, indent=indent)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):  # NumPy's and JAX's arrays and scalars
        return _plain_array(value.tolist())
    raise UsageError(
        f"a value of type {type(value).__name__} cannot be written as JSON: {value!r}\n"
        "  fix: pass numbers, strings, lists, dicts, arrays, paths or dataclasses"
    )


def _plain_array(value: Any) -> Any:
    """`tolist` of an object array or an exotic scalar may give itself back; the rest is plain already."""
    if isinstance(value, list):
        return [_plain_array(item) for item in value]
    return _plain(value if isinstance(value, bool | int | float | str) else number(value))
