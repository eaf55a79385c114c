"""A loop that draws from replay memory of the host: all draws in one compiled call, then batch after batch.

Where nothing that is drawn depends on what was gathered, as in a shard of replay memory, drawing needs no
call in every turn. The batches are taken straight into the stack that the loop leaves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from sherd.graph.ir import Node, Ref, Scope, Stack, refs_in
from sherd.lower.memory import HostGather, moves_memory
from sherd.lower.parts import Clock, HostRegion, Store, fill
from sherd.lower.regions import MESSAGES


def drawn_first(scope: Scope, unused: int) -> tuple[Scope, list[Node]] | None:
    """The loop without its gathering, which stacks where each batch begins as values from `unused` on.

    With it, what gathers. None: the loop does more than to draw and gather.
    """
    nodes = [item for item in scope.body if isinstance(item, Node)]
    gathers = [node for node in nodes if moves_memory(node)]
    if not gathers or len(nodes) < len(scope.body) or scope.carries:
        return None
    rest = tuple(node for node in nodes if node not in gathers)
    made, taken = {node.output for node in rest}, {node.output for node in gathers}
    if any(node.role in (*MESSAGES, "env") for node in rest):
        return None
    if any(ref.value in taken for node in rest for ref in refs_in(node.inputs)):
        return None
    known = all(isinstance(s.inner, Ref) and s.inner.value in made | taken for s in scope.stacks)
    starts = [node.inputs[1] for node in gathers]
    if not known or not all(isinstance(start, Ref) and start.value in made for start in starts):
        return None
    if any(ref.value in made | taken for node in gathers for ref in refs_in(node.inputs[0])):
        return None
    stacks = [stack for stack in scope.stacks if stack.inner.value in made]
    stacks += [Stack("start", start, unused + number) for number, start in enumerate(starts)]
    return replace(scope, body=rest, stacks=tuple(stacks)), gathers


class HostDraws:
    """Runs such a loop: `drawing` is the compiled part, which stacks the starts as values from `first` on."""

    def __init__(self, scope: Scope, gathers: list[Node], drawing: HostRegion, first: int) -> None:
        self._scope, self._drawing, self._first = scope, drawing, first
        self._gathers = [HostGather(node, fill) for node in gathers]
        # What one loop has left may still be read while the next is on its way.
        self._sets: list[list[Any]] = [[None] * len(gathers) for _ in range(2)]
        self._set = 0

    def run(self, store: Store, clock: Clock) -> None:
        self._drawing.run(store, clock)
        self._set = (self._set + 1) % len(self._sets)
        taken: dict[int, Any] = {}
        for number, gather in enumerate(self._gathers):
            starts, buffers = np.asarray(store[self._first + number]), self._sets[self._set]
            memory = fill(gather.node.inputs[0], store)
            if buffers[number] is None:
                buffers[number] = gather.room(memory, starts.shape[1:], starts.shape[:1])
            for turn, start in enumerate(starts):
                gather.take(memory, start, [leaf[turn] for leaf in buffers[number]])
            taken[gather.node.output] = jax.tree.unflatten(jax.tree.structure(memory), buffers[number])
        for stack in self._scope.stacks:
            if stack.inner.value in taken:
                store[stack.outer] = stack.inner.pick(taken[stack.inner.value])
