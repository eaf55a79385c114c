"""Crew: who works on a run, and what each process is told."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from typing import Any

from sherd.errors import UsageError
from sherd.executors.memory import Memories
from sherd.executors.simulators import Pattern, pattern_of
from sherd.executors.wiring import Wiring
from sherd.executors.worker import Assignment
from sherd.lower import Order
from sherd.plan import Placement, Plan, place
from sherd.policies.partition import Fragments
from sherd.policies.project import Projection
from sherd.runtime.parcel import packable
from sherd.runtime.simulator import Outlet, Simulation
from sherd.runtime.worker import WorkerSpec


def leader_of(cut: Fragments) -> str:
    """The fragment that applies updates: its iterations are the run's."""
    nodes = [
        node for role in ("apply", "learn", "act", "env") for node in cut.graph.nodes() if node.role == role
    ]
    return cut.owner[nodes[0].name]


@dataclass
class Crew:
    """Makes the orders of all workers of a run."""

    order: Order
    cut: Fragments
    programs: dict[str, Projection]
    patterns: dict[str, Pattern]
    wiring: Wiring
    memories: Memories
    turns_per_row: int
    _coordinators: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leader = leader_of(self.cut)
        self._shapes = packable(self.order.graph.shapes)

    def spec(self, one: Placement) -> WorkerSpec:
        simulates = one.fragment in self.patterns
        return WorkerSpec(
            fragment=one.fragment,
            replica=one.replica,
            kind=one.kind,
            entry="sherd.runtime.simulator:run" if simulates else "sherd.executors.worker:run",
            payload=self._simulations(one) if simulates else self._assignment(one),
            restarts=one.restarts,
            cores=one.cores,
            threads=one.threads,
            yields=one.yields,
            environ=_variables(one.kind),
        )

    def _turns(self, name: str) -> int | None:
        if not self.order.policy.runs_ahead:
            return self.order.iterations
        return self.order.iterations * self.turns_per_row if name == self.leader else None

    def _simulations(self, one: Placement) -> tuple[Simulation, ...]:
        pattern, order, fragment = self.patterns[one.fragment], self.order, self.cut[one.fragment]
        found = []
        for share in range(one.replica * fragment.ring, (one.replica + 1) * fragment.ring):
            low, high = self.wiring.range_of(one.fragment, share)
            actions = self.wiring.into(self._crossing(pattern.actions), share).streams[0]
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
        links = self.wiring.out(self._crossing(name), share).links
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
        order, wiring, wires = self.order, self.wiring, {}
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
            leads=one.fragment == self.leader,
            shapes=self._shapes,
            wires=wires,
            gate=wiring.gate(one.fragment),
            saved=wiring.store.get(f"saved {one.fragment}"),
            memory=self.memories.of(one.fragment, one.replica),
            together=(self._coordinator(one.fragment), replicas) if together else None,
        )

    def _coordinator(self, name: str) -> str:
        if name not in self._coordinators:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._coordinators[name] = f"127.0.0.1:{probe.getsockname()[1]}"
        return self._coordinators[name]


def simulators_of(cut: Fragments, programs: dict[str, Projection]) -> dict[str, Pattern]:
    """The fragments that are nothing but simulators, with what they do."""
    found = {f.name: pattern_of(programs[f.name]) for f in cut.fragments if f.kind == "environment"}
    return {name: pattern for name, pattern in found.items() if pattern is not None}


def plan_of(cut: Fragments, programs: dict[str, Projection], simulators: dict[str, Pattern]) -> Plan:
    """Who runs where; restarts only for those who need not ask again for what was exchanged before."""
    root, plan = cut.graph.root.index, place(cut)
    hopeful = {
        name
        for name, program in programs.items()
        if all(
            c.scope == root and (c.source == name or c.how == "shared") for c in program.crossings.values()
        )
    }
    hopeful |= set(simulators)
    kept = [p if p.fragment in hopeful else replace(p, restarts=0) for p in plan.placements]
    return replace(plan, placements=tuple(kept))


def _variables(kind: str) -> tuple[tuple[str, str], ...]:
    """One device for each process; actors leave accelerators to those who infer and learn for others."""
    devices = (("JAX_NUM_CPU_DEVICES", "1"),)
    return (*devices, ("JAX_PLATFORMS", "cpu")) if kind in ("environment", "actor") else devices
