"""The process executor: a process for every replica of every fragment, joined by shared memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

from sherd.errors import RunError
from sherd.executors.accounts import Accounts
from sherd.executors.crew import Crew, leader_of, plan_of, simulators_of
from sherd.executors.failures import failure, first_cause
from sherd.executors.memory import Memories
from sherd.executors.progress import Progress
from sherd.executors.rows import Rows
from sherd.executors.wiring import Wiring, saved_cells
from sherd.lower import Order
from sherd.optimise import optimise
from sherd.plan import Plan
from sherd.policies.partition import Fragments, partition
from sherd.policies.project import projection
from sherd.runtime.ledger import Ledger
from sherd.runtime.parcel import refuse_in_main_import
from sherd.runtime.supervise import Ended, Failed, Restarted, Said, Supervisor
from sherd.runtime.worker import WorkerSpec

_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_FOR_LAST_REPORTS = 5.0


class ProcessRun:
    """A run in several processes; this one only watches, counts and saves."""

    def __init__(self, order: Order) -> None:
        refuse_in_main_import()  # before anything is made that would have to be freed
        self._order = order
        self.cut: Fragments = optimise(partition(order.graph, order.policy))
        self.programs = {f.name: projection(self.cut, f.name) for f in self.cut.fragments}
        simulators = simulators_of(self.cut, self.programs)
        self.plan: Plan = plan_of(self.cut, self.programs, simulators)
        self._wiring = Wiring(self.cut, self.programs, frozenset(simulators))
        self._leader = leader_of(self.cut)
        self._rows = Rows(self.cut, self._leader, self._wiring, order.policy.runs_ahead)
        self._memories = Memories(order, self.cut, self.programs)
        crew = Crew(
            order,
            self.cut,
            self.programs,
            simulators,
            self._wiring,
            self._memories,
            self._rows.turns_per_row,
        )
        self._supervisor = Supervisor([crew.spec(one) for one in self.plan.placements], self._wake)
        self._accounts = Accounts(self.cut, self._wiring, self._supervisor.board)
        self._digests: dict[int, str] = {}
        self._restarts: Counter[str] = Counter()
        self._over = self._stopped = self._broken_off = False
        try:
            self._supervisor.start()
        except BaseException:
            self.close()
            raise

    def _wake(self, worker: WorkerSpec) -> None:
        """Ring all bells: somebody may wait for a ring that died with its process."""
        del worker
        for stream in self._wiring.stream.values():
            stream.wake()
        for store in self._wiring.store.values():
            store.wake()

    def __iter__(self) -> Iterator[Progress]:
        """Rows as they are complete; in between an empty progress, so that whoever asks to stop is heard."""
        last = time.perf_counter()
        while not self._over or self._awaits_reports():
            notes, events = [], self._supervisor.events(_SECONDS_BETWEEN_LOOKS)
            for event in events:
                notes += self._handle(event)
            failures = [event for event in events if isinstance(event, Failed)]
            if failures:
                raise failure(first_cause(failures), self.cut)
            rows, now = self._rows.complete(), time.perf_counter()
            if rows:
                yield Progress(rows, now - last, self._accounts.picture(self._rows), notes)
                last = now
            else:
                yield Progress([], 0.0, self._accounts.picture(self._rows), notes)
            if self._stopped and not self._rows.made:
                self._broken_off = True
                return  # nothing was learnt yet: there is nothing to wait for
        self._require_agreement()

    def _handle(self, event: Any) -> list[str]:
        worker = event.worker
        if isinstance(event, Said):
            kind, *content = event.message
            if kind == "done" and worker.fragment == self._leader:
                self._digests[worker.replica] = content[0]
            elif kind == "iterations":
                for report in content[0]:
                    self._rows.add(worker, *report)
            elif kind == "episodes":
                self._rows.add(worker, *content)
        elif isinstance(event, Restarted):
            self._rows.restarts += 1
            self._restarts[worker.name] += 1
            self._accounts.restarted(worker)
            cause = event.cause.partition("\n")[0]
            return [f"{worker.name} was started again, {event.attempt} of {worker.restarts} times: {cause}"]
        elif isinstance(event, Ended) and worker.fragment == self._leader:
            self._over = not any(one.fragment == self._leader for one in self._supervisor.running)
            self._over_at = time.perf_counter()
        return []

    def _awaits_reports(self) -> bool:
        """Whether those who act have yet to report what was learnt from; for some time, not for ever."""
        return self._rows.incomplete and time.perf_counter() - self._over_at < _SECONDS_FOR_LAST_REPORTS

    def _require_agreement(self) -> None:
        if len(set(self._digests.values())) > 1:
            raise RunError(
                f"the replicas of {self._leader} ended with different parameters\n"
                "  fix: reduce over environments with sherd.mean, moments or standardise only"
            )

    @property
    def cells(self) -> dict[str, Any]:
        """The state that all environments share, as it was last saved."""
        cells: dict[str, Any] = {}
        for name, program in self.programs.items():
            store = self._wiring.store.get(f"saved {name}")
            found = store.read_any() if store else None
            if found is not None:
                kept = saved_cells(program)
                treedef = jax.tree.structure([cell.type for cell in kept])
                cells |= dict(zip((cell.name for cell in kept), jax.tree.unflatten(treedef, found[1])))
        return cells

    def stop(self) -> None:
        """Ask for an orderly end."""
        self._stopped = True
        self._supervisor.stop()

    def ledger(self, failed: bool = False) -> Ledger:
        """Where every sample went."""
        return self._accounts.ledger(self._rows, failed, self._broken_off)

    def bottleneck(self) -> str:
        """One sentence on what held the run up."""
        return self._accounts.bottleneck()

    def processes(self) -> dict[str, Any]:
        """Which process runs what, for people who look at the machine."""
        return {
            one.name: {
                "kind": one.kind,
                "pid": self._supervisor.pid(one.name),
                "restarts": self._restarts[one.name],
            }
            for one in self.plan.placements
        }

    def close(self, at_once: bool = False) -> None:
        """End all processes, with or without time for an orderly end, and free the shared memory."""
        try:
            self._supervisor.kill() if at_once else self._supervisor.close()
        finally:
            if self._wiring.arena is not None:
                self._wiring.arena.unlink()
                self._wiring.arena.close()
            self._memories.free()


def start(order: Order) -> ProcessRun:
    """Begin a run."""
    return ProcessRun(order)
