"""Place fragments on this machine: a process for each replica, no more threads at work than it has cores."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sherd.policies.partition import Fragments

RESTARTS = 3  # how often a simulator or an actor may be started again


@dataclass(frozen=True)
class Placement:
    """One process."""

    fragment: str
    replica: int
    kind: str
    threads: int
    cores: tuple[int, ...]  # (): wherever the system likes
    restarts: int
    yields: bool = False  # it runs only while no one else of the run has use for the core

    @property
    def name(self) -> str:
        return f"{self.fragment}[{self.replica}]"


@dataclass(frozen=True)
class Plan:
    """All processes of a run."""

    placements: tuple[Placement, ...]
    cores: int

    def __str__(self) -> str:
        """The plan as a table.

        >>> print(Plan((Placement("learner", 0, "learner", 2, (), 0),), 4))
        plan: 1 process on 4 cores
          learner[0]     learner      2 threads  any core    ends the run if it dies
        """
        count = len(self.placements)
        lines = [f"plan: {count} process{'es' if count > 1 else ''} on {self.cores} cores"]
        for one in self.placements:
            where = f"core {', '.join(map(str, one.cores))}" if one.cores else "any core"
            threads = f"{one.threads} thread{'s' if one.threads > 1 else ''}"
            fate = f"restarted up to {one.restarts} times" if one.restarts else "ends the run if it dies"
            manner = "; yields to actors" if one.yields else ""
            lines.append(f"  {one.name:<14} {one.kind:<12} {threads:<10} {where:<11} {fate}{manner}")
        return "\n".join(lines)


def place(cut: Fragments, cores: tuple[int, ...] | None = None) -> Plan:
    """A process for each replica.

    Simulators and actors get one thread, and a core of their own where there are enough of them. Learners
    share the cores that are left, but one that all others wait for has every core, as under Single: nobody
    else computes meanwhile (Pong, two actors on two cores: 304 and 341 steps/s with one thread, 503 and 508
    with two).

    Where processes outnumber cores the system schedules them: pinning two busy processes to one core beside
    an idle one would be worse. It also schedules replicas that learn together: their messages have threads
    of their own, which would wait for the core (an all-reduce between two processes: 0.4 ms, with each of
    them on a core of its own 4 ms).

    Simulators that wait are stepped in threads of which Python runs one at a time, so that each process has
    use for one core only; on two, its threads hand Python's lock from one core to the other (64 simulators
    that sleep 1 ms, two actors and a learner on two cores: 22,500 steps/s, pinned 29,600). They leave their
    core idle at the end of every turn, when the slowest are waited for. That is enough for a learner that
    need not be waited for: it yields to whoever was woken, instead of holding up a turn of all the others
    (the same workload, by turns: 1.11 and 1.10 times as many steps). Its actors cannot starve it, because
    they wait once it is too far behind; other programs that keep all cores busy can.
    """
    free = list(available_cores() if cores is None else cores)
    total = len(free)
    count = sum(fragment.replicas for fragment in cut.fragments)
    together = any(cut.collective(fragment.name) for fragment in cut.fragments)
    pinned, waits = count <= total and not together, cut.graph.spec.waits
    heavy = [f for f in cut.fragments if f.kind in ("learner", "server")] or list(cut.fragments)
    heavies = sum(fragment.replicas for fragment in heavy)
    alone = heavies == 1 and not cut.policy.runs_ahead
    share = total if alone else max(1, (total - (count - heavies)) // heavies)
    placements = []
    for fragment in cut.fragments:
        threads = share if fragment in heavy else 1
        everywhere = alone and fragment in heavy
        for replica in range(fragment.replicas):
            steps = fragment.kind in ("environment", "actor")
            mine = tuple(free.pop(0) for _ in range(threads)) if pinned and not everywhere else ()
            if steps and waits and not mine:
                mine = (free[replica % total],)
            restarts = RESTARTS if steps else 0
            yields = fragment.kind == "learner" and waits and cut.policy.runs_ahead and not mine
            one = Placement(fragment.name, replica, fragment.kind, threads, mine, restarts, yields)
            placements.append(one)
    return Plan(tuple(placements), total)


def available_cores() -> tuple[int, ...]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))
