"""The inline executor: one process. It is the oracle that every other executor is compared with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from sherd.lower import Order, Program, build

TARGET_SECONDS = 0.3  # how long one call of a program may take, so that displays and Ctrl-C stay prompt


@dataclass(frozen=True)
class Progress:
    """Some iterations that were just made: their summaries and when the last one was done."""

    summaries: list[dict[str, float]]
    seconds: float


class InlineRun:
    """A run in this process."""

    def __init__(self, program: Program, iterations: int, batched: bool) -> None:
        self.program, self._iterations, self._batched = program, iterations, batched

    def __iter__(self) -> Iterator[Progress]:
        """Make all iterations, some at a time."""
        count = 1
        while self.program.iteration < self._iterations:
            count = min(count, self._iterations - self.program.iteration)
            began = time.perf_counter()
            first = self.program.iteration == 0
            summaries = self.program.run(count)
            seconds = time.perf_counter() - began
            yield Progress(summaries, seconds)
            if self._batched and not first:  # the first call also compiled
                count = max(1, min(count * 4, int(count * TARGET_SECONDS / max(seconds, 1e-6))))

    def close(self) -> None:
        """End the run and free what it holds."""
        self.program.close()


def start(order: Order) -> InlineRun:
    """Begin a run."""
    batched = order.graph.spec.kind == "graph"
    return InlineRun(build(order), order.iterations, batched)
