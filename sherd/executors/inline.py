"""The inline executor: one process. It is the oracle that every other executor is compared with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sherd.executors.progress import Progress
from sherd.lower import Order, Program, build
from sherd.runtime.ledger import Ledger

TARGET_SECONDS = 0.3  # how long one call of a program may take, so that displays and Ctrl-C stay prompt


class InlineRun:
    """A run in this process."""

    plan = None  # nothing is placed anywhere else

    def __init__(self, program: Program, iterations: int, batched: bool) -> None:
        self.program, self._iterations, self._batched = program, iterations, batched
        self._stopped = False

    def __iter__(self) -> Iterator[Progress]:
        """Make all iterations, some at a time."""
        count = 1
        while self.program.iteration < self._iterations and not self._stopped:
            count = min(count, self._iterations - self.program.iteration)
            began = time.perf_counter()
            first = self.program.iteration == 0
            summaries = self.program.run(count)
            seconds = time.perf_counter() - began
            yield Progress(summaries, seconds)
            if self._batched and not first:  # the first call also compiled
                count = max(1, min(count * 4, int(count * TARGET_SECONDS / max(seconds, 1e-6))))

    @property
    def cells(self) -> dict[str, Any]:
        """The state as the last iteration left it."""
        return self.program.cells

    def stop(self) -> None:
        """End after the present iteration."""
        self._stopped = True

    def ledger(self, failed: bool = False) -> Ledger:
        """Nothing crosses: what is made is learnt from at once."""
        del failed
        made = self.program.iteration * self.program.graph.steps_per_iteration()
        return Ledger(made, made)

    def bottleneck(self) -> None:
        """One process has no other to wait for."""

    def processes(self) -> None:
        """There is only this one."""

    def close(self, at_once: bool = False) -> None:
        """End the run and free what it holds."""
        del at_once
        self.program.close()


def start(order: Order) -> InlineRun:
    """Begin a run."""
    batched = order.graph.spec.kind == "graph"
    return InlineRun(build(order), order.iterations, batched)
