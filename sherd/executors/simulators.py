"""Which fragments are nothing but simulators, and what such a process is told: plain data, without JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax

from sherd.graph.ir import Node, Ref, Scope, Stack, refs_in
from sherd.policies.places import step_of
from sherd.policies.project import Projection
from sherd.runtime.simulator import Source


@dataclass(frozen=True)
class Pattern:
    """One loop that receives actions, steps, and sends; and what is sent behind it."""

    trips: int
    actions: str
    action_paths: tuple[tuple[Any, ...], ...]
    each_step: tuple[tuple[str, tuple[Source, ...]], ...]
    each_rollout: tuple[tuple[str, tuple[Source, ...]], ...]


def pattern_of(program: Projection) -> Pattern | None:
    """The program of a fragment as that pattern; None: it does more, and needs an interpreter."""
    graph = program.graph
    scopes = [item for item in graph.root.body if isinstance(item, Scope)]
    tail = [item for item in graph.root.body if isinstance(item, Node)]
    if graph.spec.kind != "host" or len(scopes) != 1 or any(node.role != "send" for node in tail):
        return None
    scope = scopes[0]
    nodes = [item for item in scope.body if isinstance(item, Node)]
    steps = [node for node in nodes if node.role == "env"]
    receives = [node for node in nodes if node.role == "receive"]
    sends = [node for node in nodes if node.role == "send"]
    # Without a message for every step, acting does not look at observations, and nothing tells how far it is.
    if len(steps) != 1 or len(receives) != 1 or not sends:
        return None
    if len(nodes) != len(scope.body) or {node.role for node in nodes} - {"env", "send", "receive"}:
        return None
    reading = _Reading(program, scope, steps[0])
    try:
        return Pattern(
            scope.trips,
            _crossing(receives[0]),
            reading.action_paths(receives[0]),
            tuple((_crossing(n), reading.sources(n)) for n in sends),
            tuple((_crossing(n), reading.sources(n)) for n in tail),
        )
    except LookupError:
        return None


def _crossing(node: Node) -> str:
    return node.name.split(" ", 1)[1]


class _Reading:
    """Finds out where each leaf of a message comes from."""

    def __init__(self, program: Projection, scope: Scope, step: Node) -> None:
        self._values = program.graph.values
        self._step = step
        self._inner = {carry.inner for carry in scope.carries if carry.cell == "env"}
        self._stacks: dict[int, Stack] = {stack.outer: stack for stack in scope.stacks}

    def action_paths(self, receive: Node) -> tuple[tuple[Any, ...], ...]:
        """For every array of the message of actions, its place in the action."""
        action = self._step.inputs[1]
        flat, _ = jax.tree_util.tree_flatten_with_path(action, is_leaf=lambda x: isinstance(x, Ref))
        places: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for keys, ref in flat:
            if not isinstance(ref, Ref) or ref.value != receive.output:
                raise LookupError("an action that is not received")
            type_ = ref.pick(self._values[ref.value].type)
            outside = tuple(name for _, name in map(step_of, keys))
            for inside, _ in jax.tree_util.tree_flatten_with_path(type_)[0]:
                rest = tuple(map(step_of, inside))
                places[(*ref.path, *rest)] = (*outside, *(name for _, name in rest))
        whole, _ = jax.tree_util.tree_flatten_with_path(self._values[receive.output].type)
        return tuple(places[tuple(map(step_of, keys))] for keys, _ in whole)

    def sources(self, send: Node) -> tuple[Source, ...]:
        """For every array of a message, where it is found."""
        found: list[Source] = []
        for part in send.inputs:
            for ref in refs_in(part):
                found += self._leaves(ref)
        return tuple(found)

    def _leaves(self, ref: Ref) -> list[Source]:
        type_ = ref.pick(self._values[ref.value].type)
        flat, _ = jax.tree_util.tree_flatten_with_path(type_)
        return [self._source(Ref(ref.value, ref.path + tuple(map(step_of, keys)))) for keys, _ in flat]

    def _source(self, ref: Ref) -> Source:
        if ref.value in self._stacks:
            inner = self._stacks[ref.value].inner
            if not isinstance(inner, Ref):
                raise LookupError("a stack of several values")
            ref = Ref(inner.value, inner.path + ref.path)
        if ref.value in self._inner:
            return Source("before", tuple(name for _, name in ref.path))
        if ref.value != self._step.output:
            raise LookupError("not of this step")
        group = ("after", "transition", "episode")[ref.path[0][1]]
        return Source(group, tuple(name for _, name in ref.path[1:]))
