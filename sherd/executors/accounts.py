"""Accounts: where every process spends its time, and where every sample went."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from sherd.executors.rows import Rows
from sherd.executors.wiring import Wiring
from sherd.plan.place import available_cores
from sherd.policies.base import Fragment
from sherd.policies.partition import Crossing, Fragments
from sherd.runtime.board import Board
from sherd.runtime.cores import idle_seconds
from sherd.runtime.ledger import Ledger, StreamCounts
from sherd.runtime.status import FragmentStatus, average, bottleneck
from sherd.runtime.streams import Stream
from sherd.runtime.worker import WorkerSpec

_SECONDS_BETWEEN_PICTURES = 1.0


class Accounts:
    """Reads the board and the streams' counters."""

    def __init__(self, cut: Fragments, wiring: Wiring, board: Board) -> None:
        self._cut, self._wiring, self._board = cut, wiring, board
        self._restarts: Counter[str] = Counter()
        self._pictures: list[list[FragmentStatus]] = []
        self._cores = available_cores()
        self._idled: list[float] = []  # cores without work while each of these pictures was taken
        self._at, self._idle_before = time.perf_counter(), idle_seconds(self._cores)
        self._before = self._read()
        self._made = 0

    def restarted(self, worker: WorkerSpec) -> None:
        """A worker of a fragment was started again."""
        self._restarts[worker.fragment] += 1

    def _read(self) -> dict[str, tuple[float, ...]]:
        """For each fragment: seconds busy, waiting, sending and computing, and steps, over its replicas."""
        found: dict[str, tuple[float, ...]] = {}
        index = 0
        for fragment in self._cut.fragments:
            rows = [self._board.row(i) for i in range(index, index + fragment.replicas)]
            index += fragment.replicas
            times = [row.times() for row in rows]
            found[fragment.name] = (
                sum(t.busy for t in times) / 1e9,
                sum(t.waiting for t in times) / 1e9,
                sum(t.sending for t in times) / 1e9,
                float(sum(row.steps for row in rows)),
                sum(row.cpu for row in rows) / 1e9,
            )
        return found

    def picture(self, rows: Rows) -> Sequence[FragmentStatus]:
        """How the fragments did since the last picture; nothing, if that was less than a second ago."""
        now = time.perf_counter()
        if now - self._at < _SECONDS_BETWEEN_PICTURES:
            return ()
        after, seconds = self._read(), now - self._at
        made = rows.made - self._made
        statuses = [self._status(f, after[f.name], seconds, made, rows) for f in self._cut.fragments]
        idle, before = idle_seconds(self._cores), self._idle_before
        self._at, self._before, self._made, self._idle_before = now, after, rows.made, idle
        if rows.made:  # what came before was start-up and compilation
            self._pictures.append(statuses)
            if idle is not None and before is not None:
                self._idled.append((idle - before) / seconds)
        return statuses

    def _status(
        self, fragment: Fragment, now: tuple[float, ...], seconds: float, made: int, rows: Rows
    ) -> FragmentStatus:
        busy, waiting, sending, steps, computed = (a - b for a, b in zip(now, self._before[fragment.name]))
        whole = max(busy + waiting + sending, 1e-9)
        acting = fragment.kind in ("environment", "actor")
        learning = fragment.kind in ("learner", "server")
        return FragmentStatus(
            name=fragment.name,
            kind=fragment.kind,
            replicas=fragment.replicas,
            per_second=(steps if acting else made) / seconds,
            unit="steps/s" if acting else "iterations/s",
            busy=busy / whole,
            waiting=waiting / whole,
            sending=sending / whole,
            queue=self._fill(fragment.name),
            restarts=self._restarts[fragment.name],
            cores=max(computed, 0.0) / seconds,
            staleness=rows.staleness if learning and self._cut.policy.runs_ahead else None,
        )

    def _fill(self, name: str) -> float | None:
        fills = [s.counts().fill for c in self._rollouts() if c.target == name for s in self._streams(c)]
        return sum(fills) / len(fills) if fills else None

    def _rollouts(self) -> list[Crossing]:
        """Messages with rows that cross once an iteration: samples on their way to learning."""
        root = self._cut.graph.root.index
        return [c for c in self._cut.crossings if c.how == "rows" and c.scope == root and not c.refreshes]

    def _streams(self, crossing: Crossing) -> list[Stream]:
        return [stream for stream, _ in self._wiring.streams_of(crossing)]

    def ledger(self, rows: Rows, failed: bool = False, broken_off: bool = False) -> Ledger:
        """Where samples went: those who sent them, those who learnt from them and the streams each count.

        After a failure what the learner held when it died is missing on its side: that is lost, and said so.
        If its first iteration was broken off, what it had taken for that one is dropped; more is a defect.
        """
        lines = [self._line(*found, rows) for found in self._carriers()]
        if not lines:
            made = rows.learnt * self._cut.graph.steps_per_iteration()
            return Ledger.of([StreamCounts(made, made, name="learnt from where they were made")])
        for line in lines:
            if failed and line.balance() > 0:
                line.drop("lost with a process", line.balance())
            elif broken_off and 0 < line.balance() <= self._cut.graph.steps_per_iteration():
                line.drop("interrupted", line.balance())
        return Ledger.of(lines)

    def _carriers(self) -> list[tuple[Stream, int, bool]]:
        """Streams that carry samples, how many steps a message stands for, and whether it is a lane."""
        graph = self._cut.graph
        sources = {self._cut.owner[node.name] for node in graph.nodes() if node.role == "env"}
        found = []
        for crossing in self._rollouts():
            for stream in self._streams(crossing) if crossing.source in sources else ():
                rows = sum(high - low for low, high in stream.spec.rows)
                steps = graph.steps_per_iteration() // graph.envs * rows
                found.append((stream, steps, self._wiring.lanes(crossing) > 0))
        for crossing in self._cut.crossings if not found else ():
            lanes = self._wiring.lanes(crossing) if crossing.how == "mean" else 0
            if lanes:  # gradients that are applied one by one: each stands for its part of an iteration
                steps = graph.steps_per_iteration() // lanes // crossing.times
                found += [(stream, steps, True) for stream in self._streams(crossing)]
        return found

    def _line(self, stream: Stream, steps: int, lane: bool, rows: Rows) -> StreamCounts:
        counts = stream.counts()
        number = int(stream.spec.name.rpartition("@")[2])
        consumed = rows.used.get(number, 0) if lane else rows.learnt * steps
        if not lane and self._cut.policy.runs_ahead:
            consumed = counts.released * steps  # replay has them: it remembers as they come
        line = StreamCounts(counts.published * steps, consumed, name=stream.spec.name)
        line.in_flight = (counts.published - counts.released) * steps
        if lane and rows.dropped.get(number):
            line.drop("stale", rows.dropped[number])
        return line

    def bottleneck(self) -> str:
        """One sentence on the whole run."""
        statuses = average(self._pictures)
        if not statuses:
            return "the run was too short to name a bottleneck"
        idle = sum(self._idled) / len(self._idled) if self._idled else None
        return bottleneck(statuses, len(self._cores), idle)
