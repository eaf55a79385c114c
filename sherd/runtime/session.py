"""Follow a run: turn summaries into rows, watch for failures and Ctrl-C, save what was learnt."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from typing import Any

import jax
import numpy as np

from sherd.errors import RunError, Source
from sherd.graph.ir import Graph
from sherd.lower.summary import update_metrics
from sherd.runtime.events import Sink
from sherd.runtime.rundir import RunDirectory

RECENT_EPISODES = 100  # what the return of a run that was not evaluated is the mean of
# Counts and sums that a row shows as means, or not at all.
_HIDDEN = frozenset(("return_sum", "length_sum", "bad_rewards", "bad_env", "episodes"))


class Session:
    """Follows a run: turns summaries into rows, watches for failures and Ctrl-C, saves what was learnt."""

    def __init__(self, graph: Graph, sink: Sink, directory: RunDirectory | None) -> None:
        self.graph, self.sink, self.directory = graph, sink, directory
        self.per_iteration = graph.steps_per_iteration()
        self.iteration = self.episodes = 0
        self.began = time.perf_counter()
        self.interrupted = False
        self._updates = update_metrics(graph)
        self._failing: dict[int, Source] = {}
        self._closing: dict[str, Any] = {}
        self._recent: list[tuple[float, float]] = []
        self._steady: list[tuple[float, int]] = []  # the first report, after compiling, and the last

    def follow(self, running: Any) -> dict[str, Any]:
        """Make all iterations; return the state cells as they were left."""
        at_once, failed = False, True
        with _Interrupts() as interrupts:
            try:
                self._write_processes(running)
                for progress in running:
                    self._take(progress, running)
                    if interrupts.asked and not self.interrupted:
                        self.interrupted = True
                        kept = "keeping what was learnt" if self.iteration else "nothing was learnt yet"
                        self.sink.note(f"interrupted: {kept}; Ctrl-C again ends at once")
                        running.stop()
                cells = dict(running.cells)
                self._count_updates(cells)
                self._save(cells)
                failed = False
                return cells
            except BaseException as error:
                at_once = isinstance(error, KeyboardInterrupt)  # the second one
                # An update that was broken off may have given up the memory of the cells it worked on.
                with contextlib.suppress(RuntimeError):
                    self._save(dict(running.cells), noted="kept" not in str(error))
                raise
            finally:
                interrupts.hold()
                running.close(at_once)
                self._write_processes(running)
                self._settle_accounts(running, failed)

    def _count_updates(self, cells: dict[str, Any]) -> None:
        """How many updates were made, of all parts together, and why there may be none."""
        if not self._updates or "learner" not in cells:  # nothing had begun when the run was ended
            return
        updates = sum(int(count) for count in jax.tree.leaves(cells["learner"].updates))
        self._closing["updates"] = updates
        if self.iteration and not updates:
            self._closing["warning"] = f"no update was made, nothing was learnt: {_why_no_update(self.graph)}"

    def _take(self, progress: Any, running: Any) -> None:
        self._tell(progress)
        if progress.notes:
            self._write_processes(running)
        if progress.summaries:
            self._report(progress.summaries, progress.seconds)
            self._require_finite(progress.summaries, running)

    def _tell(self, progress: Any) -> None:
        for note in progress.notes:
            self.sink.note(note)
        if progress.statuses:
            self.sink.fragments(progress.statuses)

    def _write_processes(self, running: Any) -> None:
        """Which process runs what, for as long as it does."""
        processes = running.processes()
        if self.directory and processes:
            self.directory.write_json("processes", processes)

    def _settle_accounts(self, running: Any, failed: bool) -> None:
        """Where every sample went and, in runs of several processes, what held them up."""
        ledger, bottleneck = running.ledger(failed), running.bottleneck()
        if ledger.balance():
            self.sink.note(f"the ledger of samples does not balance; please report this\n{ledger}")
        if bottleneck:
            self._closing |= {"bottleneck": bottleneck, "ledger": ledger.as_dict()}
        if self.directory:
            self.directory.write_json("ledger", ledger.as_dict())

    def _report(self, summaries: list[dict[str, float]], seconds: float) -> None:
        now = time.perf_counter() - self.began
        rate = len(summaries) * self.per_iteration / max(seconds, 1e-9)
        for position, summary in enumerate(summaries):
            self.iteration += 1
            episodes = int(summary["episodes"])
            self.episodes += episodes
            if episodes:
                self._recent.append((summary["return_sum"] / episodes, episodes))
                while sum(count for _, count in self._recent[1:]) >= RECENT_EPISODES:
                    self._recent.pop(0)
            missing = (len(summaries) - 1 - position) * seconds / len(summaries)
            self.sink.iteration(self._row(summary, now - missing, rate))
        self._steady[1:] = [(now, self.iteration)]

    def _row(self, summary: dict[str, float], seconds: float, rate: float) -> dict[str, float]:
        episodes = summary["episodes"]
        return {
            "iteration": self.iteration,
            "steps": self.iteration * self.per_iteration,
            "seconds": seconds,
            "steps_per_second": rate,
            "episodes": episodes,
            "episode_return": summary["return_sum"] / episodes if episodes else math.nan,
            "episode_length": summary["length_sum"] / episodes if episodes else math.nan,
            **self._metrics(summary),
        }

    def _metrics(self, summary: dict[str, float]) -> dict[str, float]:
        """The metrics of an iteration; those of an update that was not made are missing."""
        metrics = {name: value for name, value in summary.items() if name not in _HIDDEN}
        for update in self._updates:
            if update.left_out(summary):
                metrics.update(dict.fromkeys(update.shown, math.nan))
        return metrics

    def _require_finite(self, summaries: list[dict[str, float]], running: Any) -> None:
        first = self.iteration - len(summaries)
        for position, summary in enumerate(summaries):
            if summary["bad_rewards"]:
                raise RunError(
                    f"iteration {first + position + 1}: environment {int(summary['bad_env'])} of "
                    f"{self.graph.spec.id} gave a reward that is not finite{self._kept()}\n"
                    "  fix: look for NaN or infinity in its step(); "
                    f"`sherd check-env {self.graph.spec.id}` helps"
                )
            self._note_failing(first + position, summary)
        # The cells of other processes come later than their summaries.
        cells = running.cells
        failed = int(cells["learner"].failed) if "learner" in cells else -1
        if failed >= 0:
            source = self._failing.get(failed, self._updates[0].source)
            raise RunError(
                f"iteration {failed + 1}: the loss or its gradient is not finite{self._kept()}\n"
                f"  at {source.quoted()}\n"
                "  fix: try a smaller learning rate, or step through it with sherd.debug(...); "
                f"`sherd check-env {self.graph.spec.id}` looks for NaN in the observations"
            )

    def _note_failing(self, iteration: int, summary: dict[str, float]) -> None:
        """Remember the line of the first update of an iteration that is not finite."""
        for update in self._updates:
            if update.failed(summary):
                self._failing.setdefault(iteration, update.source)
                return

    def _kept(self) -> str:
        return f"; the last good parameters are kept in {self.directory.path}" if self.directory else ""

    def _save(self, cells: dict[str, Any], noted: bool = False) -> None:
        if self.directory and "learner" in cells:
            self.directory.save_tree("params", cells["learner"].params)
            self.directory.save_tree("state", {name: cells[name] for name in self.graph.shared_cells()})
            if noted:
                self.sink.note(f"the last parameters are kept in {self.directory.path}")

    def _returns(self) -> np.ndarray:
        """One number for each of the last episodes: the mean return of the iteration it ended in."""
        return np.array([value for value, count in self._recent for _ in range(int(count))])

    def summary(self) -> dict[str, Any]:
        """The run in a few numbers; returns are those of the last training episodes."""
        seconds = time.perf_counter() - self.began
        steps = self.iteration * self.per_iteration
        steady = steps / seconds
        if len(self._steady) > 1:
            (t0, i0), (t1, i1) = self._steady[0], self._steady[-1]
            steady = (i1 - i0) * self.per_iteration / max(t1 - t0, 1e-9)
        returns = self._returns()
        return {
            "steps": steps,
            "seconds": round(seconds, 3),
            "steps_per_second": round(steps / seconds, 1),
            "steady_steps_per_second": round(steady, 1),
            "return_mean": float(returns.mean()) if len(returns) else None,
            "return_std": None,  # only known for the episodes of an evaluation
            "episodes": self.episodes,
            "evaluated": False,
            "interrupted": self.interrupted,
            **self._closing,
        }


def _why_no_update(graph: Graph) -> str:
    waits = [node for node in graph.nodes() if (node.role, node.op.name) == ("replay", "ready")]
    if not waits:
        return "every learner.step was left out by its when= or stop_when="
    steps = max(dict(node.op.knobs)["steps"] for node in waits)
    return (
        f"replay is ready from {steps:,} steps on ({waits[0].source})\n"
        "  fix: make more --steps, or have it ready earlier (of built-in algorithms: --algo.warm-up)"
    )


class _Interrupts:
    """The first Ctrl-C asks for an orderly end; the second one is not held back, until `hold`."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, number: int, frame: Any) -> None:
        del number, frame
        self.asked = True
        signal.signal(signal.SIGINT, self._before)

    def hold(self) -> None:
        """From here on only the end is left to do, and nothing shall break it off."""
        if self._before is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
