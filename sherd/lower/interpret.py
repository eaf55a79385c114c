"""Interpret a graph's items inside one compiled program: nodes are calls, scopes are `lax.scan`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from sherd.author.keys import Frame
from sherd.author.types import EnvironmentStep
from sherd.graph.ir import Node, Ref, Scope, is_ref


class Values:
    """The values known so far, found by the longest known prefix of a reference."""

    def __init__(self, known: dict[Ref, Any]) -> None:
        self._known = dict(known)

    def copy(self) -> Values:
        return Values(self._known)

    def __setitem__(self, value: int, concrete: Any) -> None:
        self._known[Ref(value)] = concrete

    def __getitem__(self, ref: Ref) -> Any:
        for length in range(len(ref.path), -1, -1):
            known = Ref(ref.value, ref.path[:length])
            if known in self._known:
                return Ref(ref.value, ref.path[length:]).pick(self._known[known])
        raise KeyError(ref)

    def fill(self, tree: Any) -> Any:
        """Replace the Refs in a pytree by what they refer to."""
        return jax.tree.map(lambda leaf: self[leaf] if isinstance(leaf, Ref) else leaf, tree, is_leaf=is_ref)


def run_items(items: Iterable[Node | Scope], values: Values, frame: Frame, stepping: EnvironmentStep) -> None:
    """Execute items in order, adding what they define to `values`."""
    for item in items:
        if isinstance(item, Scope):
            run_scope(item, values, frame, stepping)
        else:
            values[item.output] = run_node(item, values, frame, stepping)


def run_node(node: Node, values: Values, frame: Frame, stepping: EnvironmentStep) -> Any:
    """Execute one node."""
    op = node.op
    if node.role == "env":
        state, action = values.fill(node.inputs)
        return stepping.function(state, action, frame.env_keys(op.name))
    return frame.perform(op, values.fill(node.inputs))


def run_scope(scope: Scope, values: Values, frame: Frame, stepping: EnvironmentStep) -> None:
    """Execute a scope as one scan."""

    def turn(carried: tuple[Any, ...], index: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        inside = values.copy()
        inside[scope.index] = index
        for carry, concrete in zip(scope.carries, carried):
            inside[carry.inner] = concrete
        run_items(scope.body, inside, frame.within(index), stepping)
        left = tuple(inside[carry.result] for carry in scope.carries)
        return left, tuple(jax.tree.map(jnp.asarray, inside.fill(stack.inner)) for stack in scope.stacks)

    entered = tuple(values[carry.initial] for carry in scope.carries)
    left, stacked = jax.lax.scan(turn, entered, jnp.arange(scope.trips))
    for carry, concrete in zip(scope.carries, left):
        values[carry.outer] = concrete
    for stack, concrete in zip(scope.stacks, stacked):
        values[stack.outer] = concrete
