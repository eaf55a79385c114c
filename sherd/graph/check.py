"""Check: is a graph well formed? If not, name the node, its neighbours and the author's line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import jax

from sherd.errors import Source, UsageError, nearest
from sherd.graph.ir import Carry, Graph, Node, Ref, Scope, Stack, Value, defines, refs_in
from sherd.graph.shapes import describe, same_type

ROLES = ("env", "act", "learn", "grad", "apply", "replay", "eval", "send", "receive")

_OUTSIDE = "pass values out of a loop through a handle (env.rollout, state.<name>)"
_NUMBERING = "a pass that rewrites graphs must give each value one definition and its own number"
_TYPING = "a cell keeps its structure, shapes and dtypes from one turn to the next"


def check(graph: Graph, whole: bool = True) -> Graph:
    """Return the graph if it is well formed, else raise a UsageError that shows the neighbourhood.

    A fragment's program is not the `whole` loop: it need not step the environment, and what it carries
    through a scope may come from another fragment instead of from a cell of its own.

    >>> from sherd.algorithms.ppo import PPO
    >>> from sherd.envs import describe
    >>> from sherd.graph.trace import trace
    >>> check(trace(PPO(), describe("CartPole-v1"), envs=8)).name
    'PPO'
    """
    _Checker(graph, whole).graph()
    return graph


class _Checker:
    """Walks a graph in program order with the values that may be used at each point."""

    def __init__(self, graph: Graph, whole: bool) -> None:
        self._graph, self._whole = graph, whole
        self._names: set[str] = set()
        self._defined: set[int] = set()
        self._everything = set(_definitions(graph.root))

    def graph(self) -> None:
        graph, root = self._graph, self._graph.root
        self._cells(root)
        known: set[int] = set()
        for value in (graph.iteration, graph.total, *(carry.inner for carry in root.carries)):
            self._define(root, None, value, known)
        self._body(root, known)
        if self._whole and graph.steps_per_iteration() == 0:
            fix = "call env.step or env.unroll in it"
            self._fail(root, None, f"the loop of {graph.name} never steps the environment", root.source, fix)

    def _cells(self, root: Scope) -> None:
        cells = [cell.name for cell in self._graph.cells]
        carried = [carry.cell for carry in root.carries]
        wrong = {name for name in (*cells, *carried) if (cells.count(name), carried.count(name)) != (1, 1)}
        if wrong:
            what = f"the cells and what the loop carries disagree about {', '.join(sorted(wrong))}"
            self._fail(
                root, None, what, root.source, "every cell is declared once and carried once by the loop"
            )

    def _body(self, scope: Scope, known: set[int]) -> None:
        if scope.trips < 1:
            fix = "loop at least once"
            self._fail(
                scope, None, f"scope {scope.name!r} has a trip count of {scope.trips}", scope.source, fix
            )
        inside = set(known)
        for item in scope.body:
            if isinstance(item, Scope):
                self._scope(scope, item, inside)
            else:
                self._node(scope, item, inside)
        for carry in scope.carries:
            line = f"next {carry.cell}"
            self._carried(scope, carry, self._use(scope, None, carry.result, inside), line)
        for stack in scope.stacks:
            self._stack(scope, stack, inside)

    def _scope(self, around: Scope, scope: Scope, known: set[int]) -> None:
        inside = set(known)
        self._define(around, scope, scope.index, inside)
        for carry in scope.carries:
            initial = self._use(around, scope, carry.initial, known)
            self._define(around, scope, carry.inner, inside)
            self._carried(around, carry, initial, f"what enters {scope.name!r} as {carry.cell}", scope)
        self._body(scope, inside)
        for value in (*(carry.outer for carry in scope.carries), *(stack.outer for stack in scope.stacks)):
            self._define(around, scope, value, known)

    def _carried(self, scope: Scope, carry: Carry, given: Any, what: str, item: Scope | None = None) -> None:
        """A cell has one type wherever it is: entering a scope, in it, and leaving it."""
        names = [cell.name for cell in self._graph.cells]
        if carry.cell in names:
            held = self._graph.cells[names.index(carry.cell)].type
        elif not self._whole:
            held = self._graph.values[carry.inner].type
        else:
            problem = f"scope {(item or scope).name!r} carries {carry.cell!r}, which is no state cell"
            self._fail(scope, item, problem, (item or scope).source, nearest(carry.cell, names))
        if not same_type(held, given):
            problem = f"cell {carry.cell!r} holds {describe(held)}, but {what} is {describe(given)}"
            self._fail(scope, item, problem, (item or scope).source, _TYPING)

    def _stack(self, scope: Scope, stack: Stack, known: set[int]) -> None:
        for ref in refs_in(stack.inner):
            self._use(scope, None, ref, known)
        if scope is self._graph.root:
            return
        turn = jax.tree.map(self._type_of, stack.inner, is_leaf=lambda leaf: isinstance(leaf, Ref))
        value = self._graph.values.get(stack.outer)
        if value is not None and not same_type(value.type, _times(turn, scope.trips)):
            what = f"{stack.channel!r} is stacked over {scope.trips} turns of {describe(turn)}"
            fix = "a stack has one more axis than what is stacked, as long as the loop has turns"
            self._fail(scope, None, f"{what}, but its type is {describe(value.type)}", scope.source, fix)

    def _type_of(self, leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            return leaf.pick(self._graph.values[leaf.value].type)
        return jax.eval_shape(lambda: jax.numpy.asarray(leaf))

    def _node(self, scope: Scope, node: Node, known: set[int]) -> None:
        if node.role not in ROLES:
            what = f"node {node.name!r} has the unknown role {node.role!r}"
            self._fail(scope, node, what, node.source, nearest(node.role, ROLES))
        if node.name in self._names:
            what = f"two nodes are called {node.name!r}, so they would share keys"
            self._fail(
                scope, node, what, node.source, "number the later one, as tracing does: name.1, name.2"
            )
        self._names.add(node.name)
        for ref in refs_in(node.inputs):
            self._use(scope, node, ref, known)
        self._define(scope, node, node.output, known)

    def _define(self, scope: Scope, item: Node | Scope | None, value: int, known: set[int]) -> None:
        source = item.source if item else scope.source
        if value in self._defined:
            self._fail(scope, item, f"value {self._name(value)} is defined twice", source, _NUMBERING)
        described = self._graph.values.get(value)
        if described is None:
            self._fail(scope, item, f"value %{value} has no type", source, _NUMBERING)
        if not _axes_fit(described):
            axes, type_ = described.env_axes, describe(described.type)
            what = f"value {self._name(value)} has the environment axes {axes}, which do not fit {type_}"
            fix = "give each array the number of its axis over environments, or None"
            self._fail(scope, item, what, source, fix)
        self._defined.add(value)
        known.add(value)

    def _use(self, scope: Scope, item: Node | Scope | None, ref: Ref, known: set[int]) -> Any:
        """The type of what is used."""
        source = item.source if item else scope.source
        name = self._name(ref.value)
        user = f"{item.name!r} uses" if item else f"the end of {scope.name!r} uses"
        if ref.value not in known:
            when = (
                "outside the loop that defines it" if ref.value in self._defined else "before it is defined"
            )
            self._fail(scope, item, f"{user} {name} {when}", source, _OUTSIDE)
        whole = self._graph.values[ref.value].type
        try:
            return ref.pick(whole)
        except (AttributeError, KeyError, IndexError, TypeError):
            what = f"{user} the part {ref.suffix()} of {name}, which is {describe(whole)}"
            self._fail(scope, item, what, source, "use a part that it has")

    def _name(self, value: int) -> str:
        known = self._graph.values.get(value)
        return f"%{value} ({known.name})" if known else f"%{value}"

    def _fail(self, scope: Scope, item: Node | Scope | None, what: str, source: Source, fix: str) -> NoReturn:
        raise UsageError(
            f"ill-formed graph of {self._graph.name}: {what}\n  in scope {scope.name!r}:\n"
            + "\n".join(self._neighbourhood(scope, item))
            + f"\n  at {source.quoted()}\n  fix: {fix}"
        )

    def _neighbourhood(self, scope: Scope, item: Node | Scope | None) -> Iterator[str]:
        """The item between those before and after it; without one, how the scope's body ends."""
        from sherd.graph.text import render_ending, render_item

        items = list(scope.body)
        at = next((index for index, other in enumerate(items) if other is item), len(items))
        for other in items[max(at - (1 if item else 2), 0) : at + 2]:
            yield ("  > " if other is item else "    ") + render_item(self._graph, other)
        if item is None:
            yield from ("  > " + line for line in render_ending(self._graph, scope))


def _definitions(scope: Scope) -> Iterator[int]:
    for item in scope.body:
        if isinstance(item, Scope):
            yield from (item.index, *(carry.inner for carry in item.carries))
            yield from _definitions(item)
        yield from defines(item)


def _axes_fit(value: Value) -> bool:
    leaves = jax.tree.leaves(value.type)
    if len(leaves) != len(value.env_axes):
        return False
    return all(axis is None or 0 <= axis < len(leaf.shape) for leaf, axis in zip(leaves, value.env_axes))


def _times(turn: Any, trips: int) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((trips, *leaf.shape), leaf.dtype), turn)
