"""Wiring: from what crosses between fragments to streams and stores in shared memory.

Rows that all replicas send for one batch meet in one stream per receiver, each writer in its own range. Rows
that are exchanged at every step, and rows of an asynchronous run, come in streams of their own, so that they
can be taken as they arrive. What is the same for all goes through a store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from sherd.author.replay import INDEX, MEMORY
from sherd.policies.partition import Crossing, Fragments
from sherd.policies.project import Projection
from sherd.runtime.lanes import LanesIn
from sherd.runtime.means import MeanIn, MeanOut
from sherd.runtime.ports import RowsIn, RowsOut, SharedIn, SharedOut
from sherd.runtime.shared import Arena, Field
from sherd.runtime.store import Store, StoreSpec, build_all
from sherd.runtime.streams import Stream, StreamSpec

Range = tuple[int, int]


@dataclass
class Wiring:
    """All streams and stores of a run, and the wires of every worker."""

    cut: Fragments
    programs: dict[str, Projection]
    simulators: frozenset[str]  # fragments whose groups each have their own wires
    specs: dict[str, StreamSpec] = field(default_factory=dict)
    stores: dict[str, StoreSpec] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    arena: Arena | None = None
    stream: dict[str, Stream] = field(default_factory=dict)
    store: dict[str, Store] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = self.cut.places()
        for crossing in self.cut.crossings:
            self._specify(crossing)
        for fragment in self.cut.fragments:
            fields = self.saved_fields(fragment.name)
            if fields:
                self.stores[f"saved {fragment.name}"] = StoreSpec(f"saved {fragment.name}", fields, 1)
        self.arena, self.stream, self.store = build_all(
            list(self.specs.values()), list(self.stores.values()), self.groups
        )

    def shares(self, name: str) -> int:
        """How many shares the environments of a fragment are divided into."""
        fragment = self.cut[name]
        return fragment.replicas * (fragment.ring if name in self.simulators else 1)

    def range_of(self, name: str, share: int) -> Range:
        """The environments of one share."""
        count = self.cut.graph.envs // self.shares(name)
        return share * count, (share + 1) * count

    def lanes(self, crossing: Crossing) -> int:
        """How many lanes a message of an asynchronous run comes from; 0: it is awaited from all."""
        free = [f for f in self.cut.fragments if f.kind in ("environment", "actor", "policy")]
        if not self.cut.policy.runs_ahead:
            return 0
        if crossing.how == "mean":
            return self.cut[crossing.source].replicas
        names = [fragment.name for fragment in free]
        if crossing.how == "rows" and crossing.source in names and crossing.target not in names:
            return 0 if self._remembers(crossing.target) else min(fragment.replicas for fragment in free)
        return 0

    def _remembers(self, name: str) -> bool:
        """Whether a fragment keeps replay: windows span rollouts, so nobody may fill another's place."""
        return any(held.cell == MEMORY and held.owned for held in self.programs[name].held)

    def _types(self, crossing: Crossing) -> list[tuple[Any, int | None]]:
        found = []
        for ref in crossing.parts:
            type_, axes = self._places.type_of(ref)
            found += list(zip(jax.tree.leaves(type_), axes))
        return found

    def axes(self, crossing: Crossing) -> tuple[int | None, ...]:
        """The environment axis of every array of a message."""
        return tuple(axis for _, axis in self._types(crossing))

    def _fields(self, crossing: Crossing, rows: int, lead: tuple[int, ...] = ()) -> tuple[Field, ...]:
        fields = []
        for leaf, axis in self._types(crossing):
            shape = list(leaf.shape)
            if axis is not None:
                shape[axis] = rows
            dtype = np.dtype(leaf.dtype).name
            fields.append(Field((*lead, *shape), dtype, 0 if lead else axis))
        return tuple(fields)

    def saved_fields(self, name: str) -> tuple[Field, ...]:
        """The arrays of the shared state that a fragment owns, as they are kept for the end of the run."""
        return tuple(
            Field(tuple(leaf.shape), np.dtype(leaf.dtype).name)
            for cell in saved_cells(self.programs[name])
            for leaf in jax.tree.leaves(cell.type)
        )

    def _specify(self, crossing: Crossing) -> None:
        if crossing.how == "shared":
            readers = self.cut[crossing.target].replicas
            self.stores[crossing.name] = StoreSpec(crossing.name, self._fields(crossing, 0), readers)
        elif crossing.how == "mean":
            self._specify_mean(crossing)
        elif self.lanes(crossing):
            self._specify_lanes(crossing)
        elif self._apart(crossing):
            self._specify_apart(crossing)
        else:
            for target in range(self.shares(crossing.target)):
                self._add(crossing, f"{crossing.name}@{target}", self.range_of(crossing.target, target))

    def _apart(self, crossing: Crossing) -> bool:
        """Whether every share of a simulator has a stream of its own."""
        per_step = crossing.scope != self.cut.graph.root.index
        return per_step and bool({crossing.source, crossing.target} & self.simulators)

    def _specify_apart(self, crossing: Crossing) -> None:
        from_simulator = crossing.source in self.simulators
        name = crossing.source if from_simulator else crossing.target
        for share in range(self.shares(name)):
            rows = self.range_of(name, share)
            stream = f"{crossing.name}@{share}"
            self._add(crossing, stream, rows)
            reader = self._replica_of(crossing.target, rows)
            self.groups.setdefault(f"{crossing.name}>{reader}", []).append(stream)

    def _replica_of(self, name: str, rows: Range) -> int:
        return rows[0] // (self.cut.graph.envs // self.cut[name].replicas)

    def _specify_lanes(self, crossing: Crossing) -> None:
        lanes = self.lanes(crossing)
        count = self.cut.graph.envs // lanes
        for lane in range(lanes):
            stream = f"{crossing.name}@{lane}"
            self._add(crossing, stream, (lane * count, (lane + 1) * count))
            self.groups.setdefault(f"lanes of {crossing.target}", []).append(stream)

    def _specify_mean(self, crossing: Crossing) -> None:
        replicas = self.cut[crossing.source].replicas
        if not self.lanes(crossing):
            fields = self._fields(crossing, 0, (replicas,))
            ranges = tuple((i, i + 1) for i in range(replicas))
            self.specs[crossing.name] = StreamSpec(crossing.name, fields, ranges)
            return
        for lane in range(replicas):
            stream = f"{crossing.name}@{lane}"
            self.specs[stream] = StreamSpec(stream, self._fields(crossing, 0, (1,)), ((0, 1),), slots=1)
            self.groups.setdefault(f"lanes of {crossing.target}", []).append(stream)

    def _add(self, crossing: Crossing, stream: str, rows: Range) -> None:
        """A stream for a range of environments, with a writer for each share that overlaps it."""
        overlaps = [
            self._overlap(crossing.source, share, rows) for share in range(self.shares(crossing.source))
        ]
        ranges = tuple((low - rows[0], high - rows[0]) for low, high in overlaps if low < high)
        self.specs[stream] = StreamSpec(stream, self._fields(crossing, rows[1] - rows[0]), ranges)

    def _overlap(self, name: str, share: int, rows: Range) -> Range:
        low, high = self.range_of(name, share)
        return max(low, rows[0]), min(high, rows[1])

    def streams_of(self, crossing: Crossing) -> list[tuple[Stream, Range]]:
        """The streams that carry the rows of a message, with the environments each holds."""
        found = []
        for name, stream in self.stream.items():
            base, _, number = name.rpartition("@")
            if base == crossing.name:
                rows = sum(high - low for low, high in stream.spec.rows)
                found.append((stream, (int(number) * rows, (int(number) + 1) * rows)))
        return found

    def out(self, crossing: Crossing, share: int) -> Any:
        """The sending end of a share (of a replica, unless the source is a simulator)."""
        if crossing.how == "shared":
            return SharedOut(self.store[crossing.name], bool(crossing.refreshes)) if share == 0 else None
        if crossing.how == "mean":
            lanes = self.lanes(crossing)
            name = f"{crossing.name}@{share}" if lanes else crossing.name
            return MeanOut(self.stream[name], 0 if lanes else share)
        mine, links = self.range_of(crossing.source, share), []
        for stream, rows in self.streams_of(crossing):
            low, high = max(mine[0], rows[0]), min(mine[1], rows[1])
            if low < high:
                writer = stream.spec.rows.index((low - rows[0], high - rows[0]))
                links.append((stream, writer, low - mine[0], high - mine[0]))
        return RowsOut(tuple(links), self.axes(crossing))

    def into(self, crossing: Crossing, share: int) -> Any:
        """The receiving end of a share, None where it belongs to a gate of lanes."""
        if crossing.how == "shared":
            latest = self.cut.policy.runs_ahead and self.cut[crossing.source].kind != "replay"
            return SharedIn(self.store[crossing.name], share, bool(crossing.refreshes), latest)
        if self.lanes(crossing):
            return None
        if crossing.how == "mean":
            return MeanIn(self.stream[crossing.name])
        mine = self.range_of(crossing.target, share)
        found = [(s, r) for s, r in self.streams_of(crossing) if mine[0] <= r[0] and r[1] <= mine[1]]
        rows = tuple((low - mine[0], high - mine[0]) for _, (low, high) in found)
        return RowsIn(tuple(s for s, _ in found), rows, self.axes(crossing), self._apart(crossing))

    def gate(self, target: str) -> tuple[LanesIn, list[str]] | None:
        """What a fragment takes from lanes, and the names of those messages."""
        through = [c for c in self.cut.crossings if c.target == target and self.lanes(c)]
        if not through:
            return None
        lanes = self.lanes(through[0])
        gradients = through[0].how == "mean"
        steps = self.cut.graph.steps_per_iteration() // lanes
        return LanesIn(
            streams=tuple(tuple(self.stream[f"{c.name}@{i}"] for i in range(lanes)) for c in through),
            axes=tuple(self.axes(c) for c in through),
            rows_per_lane=0 if gradients else self.cut.graph.envs // lanes,
            steps_per_lane=steps // through[0].times if gradients else steps,
            max_staleness=self.cut.policy.staleness_limit,
        ), [c.name for c in through]


def saved_cells(program: Projection) -> list[Any]:
    """The cells that a fragment owns and that all environments share: what is kept of a run."""
    return [
        cell
        for cell, held in zip(program.graph.cells, program.held)
        if held.owned
        and not held.path
        and held.cell not in ("env", MEMORY, INDEX)
        and all(axis is None for axis in cell.env_axes)
        and jax.tree.leaves(cell.type)
    ]
