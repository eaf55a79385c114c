"""Interpret a graph's items inside one compiled program: nodes are calls, scopes are `lax.scan`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from sherd.author.keys import Frame
from sherd.author.ops import Conditional
from sherd.author.types import EnvironmentStep
from sherd.graph.ir import Node, Ref, Scope, defined_within, is_ref, walk


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

    def but(self, ref: Ref, concrete: Any) -> Values:
        """The same values, one of them replaced."""
        return Values({**self._known, ref: concrete})

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
    """Execute a scope as one scan.

    A condition that is the same in all turns, such as whether replay holds enough to learn from, is asked
    once, before the loop, and each answer has a scan of its own. Asked in every turn it would keep apart what
    XLA can compute at the same time (SAC on two cores: 150 updates a second, asked once 157).
    """
    switch = _fixed_condition(scope)
    if switch is None or isinstance(values[switch], bool):
        left, stacked = _scan(scope, values, frame, stepping)
    else:
        left, stacked = jax.lax.cond(
            values[switch],
            lambda: _scan(scope, values.but(switch, True), frame, stepping),
            lambda: _scan(scope, values.but(switch, False), frame, stepping),
        )
    for carry, concrete in zip(scope.carries, left):
        values[carry.outer] = concrete
    for stack, concrete in zip(scope.stacks, stacked):
        values[stack.outer] = concrete


def _scan(
    scope: Scope, values: Values, frame: Frame, stepping: EnvironmentStep
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What a scope carries, after its last turn, and what it stacks."""

    def turn(carried: tuple[Any, ...], index: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        inside = values.copy()
        inside[scope.index] = index
        for carry, concrete in zip(scope.carries, carried):
            inside[carry.inner] = concrete
        run_items(scope.body, inside, frame.within(index), stepping)
        left = tuple(inside[carry.result] for carry in scope.carries)
        return left, tuple(jax.tree.map(jnp.asarray, inside.fill(stack.inner)) for stack in scope.stacks)

    entered = tuple(values[carry.initial] for carry in scope.carries)
    return jax.lax.scan(turn, entered, jnp.arange(scope.trips))


def _fixed_condition(scope: Scope) -> Ref | None:
    """The first condition in a scope that does not change from turn to turn."""
    inside = defined_within([scope])
    asked = [node.inputs[0] for node in walk(scope) if isinstance(node.op.function, Conditional)]
    return next((ref for ref in asked if isinstance(ref, Ref) and ref.value not in inside), None)
