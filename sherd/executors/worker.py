"""What a process with JAX does: it traces the loop again, takes its fragment, and runs it.

Tracing is deterministic, so every process derives the same cut; nothing that is code has to be sent. Shapes
are: finding them out is what takes long about tracing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from sherd.author.algorithm import Algorithm
from sherd.author.environments import graph_stepping
from sherd.envs import describe, make_graph, make_host
from sherd.envs.host.threads import give_way
from sherd.executors.memory import SharedBlock
from sherd.executors.reports import SECONDS_BETWEEN, Reports
from sherd.executors.rows import EPISODES
from sherd.executors.wiring import saved_cells
from sherd.graph import trace_again
from sherd.graph.ir import Ref
from sherd.graph.tiles import tile_acting
from sherd.lower.ahead import LEAST_STALENESS
from sherd.lower.begin import begin_host_program
from sherd.lower.host import HostProgram, Setting
from sherd.lower.regions import NO_ENVIRONMENT
from sherd.lower.share import Share
from sherd.lower.spmd import Spmd, mesh_of_processes
from sherd.lower.xla import XlaProgram
from sherd.optimise import optimise
from sherd.policies import DistributionPolicy
from sherd.policies.partition import Fragments, partition
from sherd.policies.project import Projection, projection
from sherd.runtime.jax_settings import join_processes, prepare_jax
from sherd.runtime.lanes import LanesIn
from sherd.runtime.ports import Session
from sherd.runtime.shared import Closed
from sherd.runtime.simulator import AFTER_A_DEATH
from sherd.runtime.store import Store
from sherd.runtime.worker import Context

# What is saved is only read when a run ends. An iteration of a few milliseconds must not spend one on it.
_SECONDS_BETWEEN_SAVES = 0.1


@dataclass(frozen=True)
class Assignment:
    """What one process is to run."""

    algorithm: Algorithm
    env: Any
    envs: int
    policy: DistributionPolicy
    seed: int
    iterations: int  # how many the whole run makes
    tile: int
    turns: int | None  # how many this fragment makes; None: until the run is closed
    fragment: str
    replica: int
    leads: bool  # whether this fragment decides when the run ends
    shapes: dict[Any, Any] = field(default_factory=dict)  # what the graph's are, as far as they can travel
    wires: dict[str, Any] = field(default_factory=dict)
    gate: tuple[LanesIn, list[str]] | None = None
    saved: Store | None = None
    memory: SharedBlock | None = None  # where replay is kept on the host
    together: tuple[str, int] | None = None  # address and number of those that learn together


def run(assignment: Assignment, context: Context) -> None:
    """The life of such a process."""
    logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # what it logs is raised and reported
    _Worker(assignment, context).run()


class _Worker:
    def __init__(self, assignment: Assignment, context: Context) -> None:
        self.assignment, self.context = assignment, context
        self.session = Session(context)
        prepare_jax()
        if assignment.together:  # before anything starts JAX
            join_processes(assignment.together[0], assignment.together[1], assignment.replica)
        self._cut = self._derive()
        fragment = self._cut[assignment.fragment]
        self._whole: Projection = projection(self._cut, assignment.fragment)
        self._ports = self._open_ports()
        self._share = Share.of_replica(assignment.envs, assignment.replica, fragment.replicas)
        owners = {self._cut.owner[n.name] for n in self._cut.graph.nodes() if n.role == "env"}
        owns_env = fragment.name in owners
        self._steps = self._cut.graph.steps_per_iteration() // fragment.replicas if owns_env else 0
        self.program = self._build(owns_env)
        self._cells = [cell.name for cell in saved_cells(self._whole)]
        self._saved = assignment.saved.writer() if assignment.saved and assignment.replica == 0 else None
        seconds = SECONDS_BETWEEN if assignment.policy.runs_ahead else 0.0
        self._reports, self._saved_at = Reports(context.send, seconds), time.monotonic()

    def _derive(self) -> Fragments:
        a = self.assignment
        graph = trace_again(a.algorithm, describe(a.env), a.envs, dict(a.shapes))
        return optimise(partition(tile_acting(graph, a.tile), a.policy))

    def _open_ports(self) -> dict[str, Any]:
        a = self.assignment
        ports = {name: wire.open(self.session) for name, wire in a.wires.items() if wire is not None}
        if a.gate:
            lanes = a.gate[0].open(self.session)
            ports |= {name: lanes.port(number) for number, name in enumerate(a.gate[1])}
        silent = {name: _Silent() for name in self._whole.crossings if name not in ports}
        return ports | silent

    def _build(self, owns_env: bool) -> HostProgram | XlaProgram:
        a, graph = self.assignment, self._whole.graph
        on_host = graph.spec.kind == "host"
        env = make_graph(a.env) if owns_env and not on_host else None
        spmd = None
        if self.assignment.together:
            averaged = not any(c.how == "mean" for c in self._whole.crossings.values())
            spmd = Spmd(mesh_of_processes(), averaged)
        if env is not None and not self._whole.crossings:
            mesh = spmd.mesh if spmd else None
            return XlaProgram(graph, a.algorithm, env, a.seed, a.iterations, mesh, longest_call=1)
        seed = a.seed + AFTER_A_DEATH * self.context.attempt
        simulators = (
            make_host(a.env, self._share.count, seed, first_index=self._share.first)
            if owns_env and on_host
            else None
        )
        stepping = graph_stepping(env) if env is not None else NO_ENVIRONMENT
        policy, kind = a.policy, self._cut[a.fragment].kind
        may = kind == "actor" and policy.runs_ahead and policy.staleness_limit >= LEAST_STALENESS
        if kind == "actor" and simulators is not None and simulators.spec.waits:
            give_way()
        setting = Setting(
            a.seed,
            a.iterations,
            self._share,
            simulators,
            stepping,
            self._ports,
            spmd,
            a.memory,
            self.session.went_ahead if may else None,
        )
        return begin_host_program(graph, self._whole.held, a.algorithm, setting, env)

    def run(self) -> None:
        program = self.program
        try:
            self._start()
            self.context.send(("ready",))
            while not self._finished():
                self._iterate()
            self._save()
            self._reports.flush()
            self.context.send(("done", self._digest()))
        except BaseException:
            with contextlib.suppress(Closed):  # what was made before it went wrong counts
                self._reports.flush()
            raise
        finally:
            program.close()

    def _iterate(self) -> None:
        self.session.begin()
        number = self.program.iteration
        summary = self._global(self.program.run(1)[0])
        self.context.clock.count(self._steps)
        # Whoever does not lead may be ended at any time, and leaves what it has saved.
        if not self.assignment.leads or time.monotonic() - self._saved_at >= _SECONDS_BETWEEN_SAVES:
            self._save()
        ages = self.session.ages
        self.context.row.staleness = int(1000 * np.mean(ages)) if ages else 0
        news = {
            "used": dict(self.session.used),
            "dropped": dict(self.session.dropped),
            "staleness": float(np.mean(ages)) if ages else None,
        }
        self._reports.add(number, summary, news)

    def _global(self, summary: dict[str, float]) -> dict[str, float]:
        """A summary whose numbers can be added to those of other replicas."""
        if isinstance(self.program, XlaProgram) and self.assignment.replica:
            return dict.fromkeys(summary, 0.0)  # this program has added them up already
        if "bad_env" in summary and not isinstance(self.program, XlaProgram):
            summary["bad_env"] += self._share.first
        return summary

    def _save(self) -> None:
        if self._saved is not None and self._cells:
            cells = [self.program.cells[name] for name in self._cells]
            self._saved.publish([np.asarray(leaf) for leaf in jax.tree.leaves(cells)], self.program.iteration)
            self._saved_at = time.monotonic()

    def _finished(self) -> bool:
        a, made = self.assignment, self.program.iteration
        if a.leads:
            board = self.context.board
            if self.context.stopping and a.replica == 0 and board.last is None:
                # Replicas that learn together are at most one iteration apart: this one is for all of them.
                board.last = made + (1 if self.assignment.together else 0)
            if board.last is not None and made >= board.last:
                return True
        else:
            self.context.watch()
        return a.turns is not None and made >= a.turns

    def _start(self) -> None:
        """Exchange what the first iteration begins with; a successor of a dead process catches up."""
        self._save()
        if self.context.attempt:
            self._catch_up()
            return
        for crossing in self._whole.crossings.values():
            if any(refresh.cell == "env" for _, refresh in crossing.refreshes):
                port = self._ports[crossing.name]
                if crossing.source == self.assignment.fragment:
                    port.send(self._first_message(crossing))
                else:
                    self._refresh(crossing, port.receive())
                    port.release()

    def _first_message(self, crossing: Any) -> list[Any]:
        parts: list[Any] = [None] * len(crossing.parts)
        for number, refresh in crossing.refreshes:
            path = refresh.path[: len(refresh.path) - len(refresh.inside)]
            parts[number] = Ref(0, path).pick(self.program.cells[refresh.cell])
        return jax.tree.leaves(parts)

    def _refresh(self, crossing: Any, arrays: list[Any]) -> None:
        node = next(n for n in self._whole.graph.nodes() if n.name == f"receive {crossing.name}")
        treedef = jax.tree.structure(self._whole.graph.values[node.output].type)
        parts = jax.tree.unflatten(treedef, [np.array(array) for array in arrays])
        for number, refresh in crossing.refreshes:
            name = refresh.cell + Ref(0, refresh.path).suffix()
            if name in self.program.cells:
                self.program.cells[name] = Ref(0, refresh.inside).pick(parts[number])

    def _catch_up(self) -> None:
        """Go on with the first iteration whose messages are not all sent."""
        me, crossings = self.assignment.fragment, self._whole.crossings.values()
        sends = [(c, self._ports[c.name]) for c in crossings if c.source == me and c.how == "rows"]
        made = min((port.published // crossing.times for crossing, port in sends), default=0)
        for crossing, port in sends:
            port.resume(made * crossing.times)
        for crossing in crossings:
            if crossing.target == me and crossing.how == "shared":
                newest = self._ports[crossing.name].resume(made * crossing.times)
                if newest is not None:
                    self._refresh(crossing, newest)
        self.program.iteration = made
        if made:  # the predecessor may have died before it could report; a second report counts for nothing
            self._reports.add(made - 1, dict.fromkeys((*EPISODES, "bad_env"), 0.0))

    def _digest(self) -> str:
        """What all replicas must agree on at the end."""
        digest = hashlib.sha256()
        for name in self._cells:
            for leaf in jax.tree.leaves(self.program.cells[name]):
                digest.update(np.ascontiguousarray(np.asarray(leaf)).tobytes())
        return digest.hexdigest()


class _Silent:
    """The port of a replica that has nothing to send, because another one sends the same."""

    def send(self, arrays: Any) -> None:
        """Say nothing."""

    def receive(self) -> list[Any]:
        """Never asked for."""
        raise Closed("nothing is received here")

    def release(self) -> None:
        """Nothing to give back."""
