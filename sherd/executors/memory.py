"""Replay memory that fragments of a run keep on the host: shared memory that the parent makes and frees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sherd.lower import Order
from sherd.lower.memory import memory_type, on_host
from sherd.policies.partition import Fragments
from sherd.policies.project import Projection
from sherd.runtime.shared import Arena, ArenaPlan, Field


@dataclass(frozen=True)
class SharedBlock:
    """Arrays in shared memory, zeros at first."""

    arena: Arena
    offsets: tuple[int, ...]
    fields: tuple[Field, ...]

    def __call__(self, type_: Any) -> Any:
        """The arrays, as a tree of this type."""
        arrays = [
            self.arena.array(offset, field.shape, field.dtype)
            for offset, field in zip(self.offsets, self.fields)
        ]
        return jax.tree.unflatten(jax.tree.structure(type_), arrays)


class Memories:
    """The memory of every replica that keeps some on the host."""

    def __init__(self, order: Order, cut: Fragments, programs: dict[str, Projection]) -> None:
        plan, wanted = ArenaPlan(), {}
        for fragment in cut.fragments:
            graph, envs = programs[fragment.name].graph, cut.graph.envs // fragment.replicas
            if not self._on_host(order, programs[fragment.name], envs, fragment.kind == "replay"):
                continue
            leaves = jax.tree.leaves(memory_type(graph, envs))
            fields = tuple(Field(tuple(leaf.shape), np.dtype(leaf.dtype).name) for leaf in leaves)
            for replica in range(fragment.replicas):
                wanted[fragment.name, replica] = tuple(plan.reserve(field.nbytes) for field in fields), fields
        self.arena = Arena.create(plan.size) if wanted else None
        self._blocks = {
            key: SharedBlock(self.arena, *block) for key, block in wanted.items() if self.arena is not None
        }

    def _on_host(self, order: Order, program: Projection, envs: int, apart: bool) -> bool:
        steps_graph = program.graph.spec.kind == "graph" and any(
            node.role == "env" for node in program.graph.nodes()
        )
        whole = steps_graph and not program.crossings  # then the fragment is one compiled program
        return not whole and on_host(program.graph, envs, order.replay, apart)

    def of(self, fragment: str, replica: int) -> SharedBlock | None:
        """The memory of one replica; None: it keeps its replay inside its compiled program, or has none."""
        return self._blocks.get((fragment, replica))

    def free(self) -> None:
        """Give the memory back."""
        if self.arena is not None:
            self.arena.unlink()
            self.arena.close()
