"""The process executor: a process for every replica of every fragment, joined by shared memory."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax

from sherd.errors import RunError, UsageError
from sherd.executors.accounts import Accounts
from sherd.executors.failures import failure, first_cause
from sherd.executors.progress import Progress
from sherd.executors.rows import Rows
from sherd.executors.simulators import Pattern, pattern_of
from sherd.executors.wiring import Wiring, saved_cells
from sherd.executors.worker import Assignment
from sherd.lower import Order
from sherd.optimise import optimise
from sherd.plan import Placement, Plan, place
from sherd.policies.partition import Fragments, partition
from sherd.policies.project import projection
from sherd.runtime.ledger import Ledger
from sherd.runtime.simulator import Outlet, Simulation
from sherd.runtime.supervise import Ended, Failed, Restarted, Said, Supervisor
from sherd.runtime.worker import WorkerSpec

_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_FOR_LAST_REPORTS = 5.0


class ProcessRun:
    """A run in several processes; this one only watches, counts and saves."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.cut: Fragments = optimise(partition(order.graph, order.policy))
        self.programs = {f.name: projection(self.cut, f.name) for f in self.cut.fragments}
        self._patterns = self._find_simulators()
        self.plan: Plan = self._without_hopeless_restarts(place(self.cut))
        self._wiring = Wiring(self.cut, self.programs, frozenset(self._patterns))
        self._leader = leader_of(self.cut)
        self._rows = Rows(self.cut, self._leader, self._wiring, order.policy.runs_ahead)
        self._coordinators: dict[str, str] = {}
        self._supervisor = Supervisor([self._spec(one) for one in self.plan.placements], self._wake)
        self._accounts = Accounts(self.cut, self._wiring, self._supervisor.board)
        self._digests: dict[int, str] = {}
        self._restarts: Counter[str] = Counter()
        self._over = self._stopped = False
        try:
            self._supervisor.start()
        except BaseException:
            self.close()
            raise

    def _find_simulators(self) -> dict[str, Pattern]:
        found = {
            fragment.name: pattern_of(self.programs[fragment.name])
            for fragment in self.cut.fragments
            if fragment.kind == "environment"
        }
        return {name: pattern for name, pattern in found.items() if pattern is not None}

    def _without_hopeless_restarts(self, plan: Plan) -> Plan:
        """What is exchanged within an iteration cannot be asked for again, unless by a simulator."""
        root = self.cut.graph.root.index
        hopeful = {
            name
            for name, program in self.programs.items()
            if all(
                c.scope == root and (c.source == name or c.how == "shared")
                for c in program.crossings.values()
            )
        }
        hopeful |= set(self._patterns)
        kept = [p if p.fragment in hopeful else replace(p, restarts=0) for p in plan.placements]
        return replace(plan, placements=tuple(kept))

    def _wake(self, worker: WorkerSpec) -> None:
        """Ring all bells: somebody may wait for a ring that died with its process."""
        del worker
        for stream in self._wiring.stream.values():
            stream.wake()
        for store in self._wiring.store.values():
            store.wake()

    def _spec(self, one: Placement) -> WorkerSpec:
        simulates = one.fragment in self._patterns
        return WorkerSpec(
            fragment=one.fragment,
            replica=one.replica,
            kind=one.kind,
            entry="sherd.runtime.simulator:run" if simulates else "sherd.executors.worker:run",
            payload=self._simulations(one) if simulates else self._assignment(one),
            restarts=one.restarts,
            cores=one.cores,
            threads=one.threads,
            environ=_variables(one.kind),
        )

    def _turns(self, name: str) -> int | None:
        if not self._order.policy.runs_ahead:
            return self._order.iterations
        return self._order.iterations * self._rows.turns_per_row if name == self._leader else None

    def _simulations(self, one: Placement) -> tuple[Simulation, ...]:
        pattern, order, fragment = self._patterns[one.fragment], self._order, self.cut[one.fragment]
        found = []
        for share in range(one.replica * fragment.ring, (one.replica + 1) * fragment.ring):
            low, high = self._wiring.range_of(one.fragment, share)
            actions = self._wiring.into(self._crossing(pattern.actions), share).streams[0]
            found.append(
                Simulation(
                    order.env,
                    order.seed,
                    low,
                    high - low,
                    pattern.trips,
                    self._turns(one.fragment),
                    actions,
                    pattern.action_paths,
                    tuple(self._outlet(name, sources, share) for name, sources in pattern.each_step),
                    tuple(self._outlet(name, sources, share) for name, sources in pattern.each_rollout),
                )
            )
        return tuple(found)

    def _outlet(self, name: str, sources: Any, share: int) -> Outlet:
        links = self._wiring.out(self._crossing(name), share).links
        if len(links) != 1:
            raise UsageError(
                f"the rows of one simulator would go to {len(links)} receivers\n"
                "  fix: use as many simulators as receivers, or a multiple"
            )
        stream, writer, _, _ = links[0]
        return Outlet(stream, writer, sources)

    def _crossing(self, name: str) -> Any:
        return next(c for c in self.cut.crossings if c.name == name)

    def _assignment(self, one: Placement) -> Assignment:
        order, wiring, wires = self._order, self._wiring, {}
        for crossing in self.programs[one.fragment].crossings.values():
            sends = crossing.source == one.fragment
            wires[crossing.name] = (wiring.out if sends else wiring.into)(crossing, one.replica)
        together, replicas = self.cut.collective(one.fragment), self.cut[one.fragment].replicas
        return Assignment(
            algorithm=order.algorithm,
            env=order.env,
            envs=order.graph.envs,
            policy=order.policy,
            seed=order.seed,
            iterations=order.iterations,
            tile=order.tile,
            turns=self._turns(one.fragment),
            fragment=one.fragment,
            replica=one.replica,
            leads=one.fragment == self._leader,
            wires=wires,
            gate=wiring.gate(one.fragment),
            saved=wiring.store.get(f"saved {one.fragment}"),
            together=(self._coordinator(one.fragment), replicas) if together else None,
        )

    def _coordinator(self, name: str) -> str:
        if name not in self._coordinators:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._coordinators[name] = f"127.0.0.1:{probe.getsockname()[1]}"
        return self._coordinators[name]

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
                return  # nothing was learnt yet: there is nothing to wait for
        self._require_agreement()

    def _handle(self, event: Any) -> list[str]:
        worker = event.worker
        if isinstance(event, Said):
            kind, *content = event.message
            if kind == "done" and worker.fragment == self._leader:
                self._digests[worker.replica] = content[0]
            elif kind in ("iteration", "episodes"):
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
        return self._accounts.ledger(self._rows, failed)

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


def _variables(kind: str) -> tuple[tuple[str, str], ...]:
    """One device for each process; actors leave accelerators to those who infer and learn for others."""
    devices = (("JAX_NUM_CPU_DEVICES", "1"),)
    return (*devices, ("JAX_PLATFORMS", "cpu")) if kind in ("environment", "actor") else devices


def leader_of(cut: Fragments) -> str:
    """The fragment that applies updates: its iterations are the run's."""
    nodes = [
        node for role in ("apply", "learn", "act", "env") for node in cut.graph.nodes() if node.role == role
    ]
    return cut.owner[nodes[0].name]


def start(order: Order) -> ProcessRun:
    """Begin a run."""
    return ProcessRun(order)
