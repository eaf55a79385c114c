"""The intermediate representation: one training iteration as a tree of scopes.

A graph is in static single assignment form. A *value* is a pytree of arrays and is defined exactly once:
by a node, by a scope's turn index, or by a scope's carry. State lives in *cells*; a scope that changes a
cell carries it: `initial` enters, `inner` is what a turn sees, `result` is what it leaves, `outer` is what
the scope leaves behind. The root scope carries every cell from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax

from sherd.author.stage import Op
from sherd.errors import Source
from sherd.spaces import EnvSpec

Step = tuple[str, Any]  # ("attr", name) or ("item", key)


@dataclass(frozen=True)
class Ref:
    """A use of a value, or of the part of it that a path leads to."""

    value: int
    path: tuple[Step, ...] = ()

    def pick(self, whole: Any) -> Any:
        """Follow the path into a concrete value.

        >>> Ref(0, (("item", "a"), ("item", 1))).pick({"a": (10, 20)})
        20
        """
        for kind, name in self.path:
            whole = getattr(whole, name) if kind == "attr" else whole[name]
        return whole

    def suffix(self) -> str:
        """The path as an author writes it."""
        return "".join(f".{name}" if kind == "attr" else f"[{name!r}]" for kind, name in self.path)


@dataclass(frozen=True)
class Value:
    """`type` has a ShapeDtypeStruct at every leaf; `env_axes` names, leaf by leaf, the environment axis."""

    id: int
    name: str
    type: Any
    env_axes: tuple[int | None, ...]

    def axes_tree(self) -> Any:
        """The environment axes in the shape of the type, -1 for none."""
        treedef = jax.tree.structure(self.type)
        return jax.tree.unflatten(treedef, [-1 if axis is None else axis for axis in self.env_axes])


@dataclass(frozen=True)
class Node:
    """One call of a pure function. `inputs` is a pytree with a Ref or a constant at every leaf."""

    name: str
    op: Op
    inputs: tuple[Any, ...]
    output: int
    source: Source

    @property
    def role(self) -> str:
        return self.op.role


@dataclass(frozen=True)
class Carry:
    """A cell that a scope changes."""

    cell: str
    initial: Ref
    inner: int
    result: Ref
    outer: int


@dataclass(frozen=True)
class Stack:
    """A pytree of Refs kept in every turn and stacked along a new leading axis."""

    channel: str
    inner: Any
    outer: int


@dataclass(frozen=True)
class Scope:
    """A body that is repeated `trips` times; `index` is the value that numbers the turns."""

    name: str
    trips: int
    index: int
    body: tuple[Node | Scope, ...]
    carries: tuple[Carry, ...]
    stacks: tuple[Stack, ...]
    source: Source


@dataclass(frozen=True)
class Cell:
    """Named state carried between iterations.

    If it is not known from the algorithm, `build` makes it for a number of environments.
    """

    name: str
    type: Any
    env_axes: tuple[int | None, ...]
    build: Callable[[int], Any] | None = None


@dataclass(frozen=True)
class Graph:
    """One training iteration of an algorithm on an environment.

    `iteration` and `total` are values that the run provides. `reports` are the stacks of the root: what
    each iteration tells the outside.
    """

    name: str
    spec: EnvSpec
    envs: int
    cells: tuple[Cell, ...]
    root: Scope
    values: dict[int, Value]
    iteration: int
    total: int
    warnings: tuple[str, ...] = field(default=(), compare=False)
    shapes: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # for `trace_again`

    @property
    def reports(self) -> tuple[Stack, ...]:
        return self.root.stacks

    def nodes(self) -> Iterator[Node]:
        """Every node in program order."""
        return walk(self.root)

    def shared_cells(self) -> list[str]:
        """The cells that all environments share and that have something in them: what is kept of a run."""
        return [
            cell.name
            for cell in self.cells
            if cell.name != "env" and all(axis is None for axis in cell.env_axes) and cell.env_axes
        ]

    def steps_per_iteration(self) -> int:
        """How many environment steps one iteration makes, over all environments."""
        return self.envs * sum(trips for node, trips in _with_trips(self.root, 1) if node.role == "env")

    def __str__(self) -> str:
        from sherd.graph.text import render

        return render(self)


def walk(scope: Scope) -> Iterator[Node]:
    """Every node of a scope and of the scopes in it."""
    for item in scope.body:
        if isinstance(item, Scope):
            yield from walk(item)
        else:
            yield item


def _with_trips(scope: Scope, trips: int) -> Iterator[tuple[Node, int]]:
    for item in scope.body:
        if isinstance(item, Scope):
            yield from _with_trips(item, trips * item.trips)
        else:
            yield item, trips


def is_ref(leaf: Any) -> bool:
    """Whether a leaf is a use of a value."""
    return isinstance(leaf, Ref)


def refs_in(tree: Any) -> list[Ref]:
    """Every Ref in a pytree of Refs and constants."""
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_ref) if isinstance(leaf, Ref)]


def uses(item: Node | Scope) -> list[Ref]:
    """Every Ref that an item makes, inside it included."""
    if isinstance(item, Node):
        return refs_in(item.inputs)
    found = [ref for inner in item.body for ref in uses(inner)]
    for carry in item.carries:
        found += [carry.initial, carry.result]
    for stack in item.stacks:
        found += refs_in(stack.inner)
    return found


def defines(item: Node | Scope) -> list[int]:
    """The values that an item defines for those outside it."""
    if isinstance(item, Node):
        return [item.output]
    return [carry.outer for carry in item.carries] + [stack.outer for stack in item.stacks]


def defined_within(items: Iterable[Node | Scope]) -> set[int]:
    """The values that items define, those that are only known inside them included."""
    inside: set[int] = set()
    for item in items:
        inside.update(defines(item))
        if isinstance(item, Scope):
            inside |= {item.index, *(carry.inner for carry in item.carries)} | defined_within(item.body)
    return inside
