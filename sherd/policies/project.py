"""Project: the program of one fragment, as a graph of its own with sends and receives in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import jax

from sherd.author.stage import Op
from sherd.errors import UsageError
from sherd.graph.ir import Carry, Cell, Graph, Node, Ref, Scope, Stack, Value, is_ref
from sherd.policies.needs import Needs, Path, covers
from sherd.policies.partition import Crossing, Fragments, part_names
from sherd.policies.places import Places, extend, stack_leaves, step_of


@dataclass(frozen=True)
class Held:
    """A cell that a fragment carries: all of a cell of the loop, or the part of it at `path`."""

    name: str
    cell: str
    path: Path
    owned: bool


@dataclass(frozen=True)
class Projection:
    """What one fragment runs. Its sends and receives are nodes named after the crossings they perform."""

    name: str
    graph: Graph
    held: tuple[Held, ...]
    crossings: dict[str, Crossing]

    def __str__(self) -> str:
        return str(self.graph)


def whole_cells(graph: Graph) -> tuple[Held, ...]:
    """All cells of a graph, owned."""
    return tuple(Held(cell.name, cell.name, (), True) for cell in graph.cells)


def projection(cut: Fragments, name: str) -> Projection:
    """The program of a fragment."""
    mine = {c.name: c for c in cut.crossings if name in (c.source, c.target)}
    if not mine and set(cut.owner.values()) == {name}:
        return Projection(name, cut.graph, whole_cells(cut.graph), {})
    return _Projector(cut, name, mine).run()


class _Projector:
    """Rewrites the loop for one fragment. New values get new numbers, so numbers mean the same everywhere."""

    def __init__(self, cut: Fragments, name: str, mine: dict[str, Crossing]) -> None:
        self.cut, self.name, self.crossings = cut, name, mine
        self.places: Places = cut.places()
        given = [ref for crossing in mine.values() if crossing.source == name for ref in crossing.parts]
        self.needs = Needs(self.places, name, given)
        self.values: dict[int, Value] = dict(cut.graph.values)
        self._numbers = count(max(self.values) + 1)
        self.inner: dict[tuple[int, str, Path], int] = {}
        self.outer: dict[tuple[int, str, Path], int] = {}
        self.stacks: dict[tuple[int, Path], int] = {}
        self.received: dict[str, int] = {}
        for (scope, cell), paths in self.needs.mirrors.items():
            for path in sorted(paths, key=str):
                self._number_mirror(scope, cell, path)
        for outer, paths in self.needs.stacked.items():
            for path in sorted(paths, key=str):
                self.stacks[outer, path] = self._new(Ref(outer, path))
        for crossing in mine.values():
            if crossing.target == name:
                self.received[crossing.name] = self._new_tuple(crossing)

    def run(self) -> Projection:
        graph, root = self.cut.graph, self.cut.graph.root
        projected = self._scope(root)
        builders = {cell.name: cell.build for cell in graph.cells}
        held, cells = [], []
        for name, carry, path in self._carried(root):
            owned = self.places.home(Ref(carry.inner)) in (None, self.name)
            held.append(Held(name, carry.cell, path, owned))
            cells.append(
                Cell(name, *self.places.type_of(Ref(carry.inner, path)), _picking(builders[carry.cell], path))
            )
        fragment = replace(
            graph,
            name=f"{graph.name}/{self.name}",
            cells=tuple(cells),
            root=projected,
            values=self.values,
            warnings=(),
        )
        return Projection(self.name, fragment, tuple(held), self.crossings)

    def _add(self, name: str, type_: Any, axes: tuple[int | None, ...]) -> int:
        number = next(self._numbers)
        self.values[number] = Value(number, name, type_, axes)
        return number

    def _new(self, ref: Ref) -> int:
        return self._add(self.cut.graph.values[ref.value].name + ref.suffix(), *self.places.type_of(ref))

    def _new_tuple(self, crossing: Crossing) -> int:
        described = [self.places.type_of(ref) for ref in crossing.parts]
        axes = tuple(axis for _, part in described for axis in part)
        return self._add(crossing.source, tuple(part for part, _ in described), axes)

    def _carried(self, scope: Scope) -> list[tuple[str, Carry, Path]]:
        """What this fragment carries through a scope: parts of the cells that the loop does."""
        return [
            (carry.cell + Ref(0, path).suffix(), carry, path)
            for carry in scope.carries
            for path in sorted(self.needs.mirrors.get((scope.index, carry.cell), ()), key=str)
        ]

    def _number_mirror(self, index: int, cell: str, path: Path) -> None:
        scope = next(s for s in self.places.scopes(self.cut.graph.root) if s.index == index)
        carry = next(carry for carry in scope.carries if carry.cell == cell)
        whole = not path
        self.inner[index, cell, path] = carry.inner if whole else self._new(Ref(carry.inner, path))
        is_root = scope is self.cut.graph.root
        self.outer[index, cell, path] = carry.outer if whole or is_root else self._new(Ref(carry.inner, path))

    def _scope(self, scope: Scope) -> Scope:
        body: list[Node | Scope] = []
        for item in scope.body:
            key = item.index if isinstance(item, Scope) else item.output
            if isinstance(item, Scope):
                if self.places.takes_part(self.name, item):
                    body.append(self._scope(item))
            elif self.places.owner[item.name] == self.name:
                body.append(replace(item, inputs=self._tree(item.inputs)))
            body += self._messages(scope, self.places.positions[key], item)
        body += self._messages(scope, self.places.ends[scope.index], scope)
        return replace(
            scope, body=tuple(body), carries=self._carries(scope), stacks=self._scope_stacks(scope)
        )

    def _messages(self, scope: Scope, position: int, item: Node | Scope) -> list[Node | Scope]:
        """Sends first: nobody waits before it has given what it has."""
        mine = [crossing for crossing in self.crossings.values() if crossing.scope == scope.index]
        sent = [c for c in mine if c.source == self.name and c.sent == position]
        received = [c for c in mine if c.target == self.name and c.received == position]
        return [*(self._send(c, item) for c in sent), *(self._receive(c, item) for c in received)]

    def _send(self, crossing: Crossing, item: Node | Scope) -> Node:
        op = Op("send", "send", _transport, knobs=(("to", crossing.target), ("how", crossing.how)))
        parts = tuple(self._rewrite(ref) for ref in crossing.parts)
        return Node(f"send {crossing.name}", op, parts, self._add("sent", (), ()), item.source)

    def _receive(self, crossing: Crossing, item: Node | Scope) -> Node:
        parts = part_names(self.cut.graph, crossing)
        knobs = (("from", crossing.source), ("how", crossing.how), ("parts", parts))
        op = Op("receive", "receive", _transport, knobs=knobs)
        return Node(f"receive {crossing.name}", op, (), self.received[crossing.name], item.source)

    def _carries(self, scope: Scope) -> tuple[Carry, ...]:
        carries = []
        for name, carry, path in self._carried(scope):
            key = (scope.index, carry.cell, path)
            root = scope is self.cut.graph.root
            initial = Ref(self.inner[key]) if root else self._one(extend(carry.initial, path), scope)
            result = self._one(extend(carry.result, path), scope)
            carries.append(Carry(name, initial, self.inner[key], result, self.outer[key]))
        return tuple(carries)

    def _scope_stacks(self, scope: Scope) -> tuple[Stack, ...]:
        if scope is self.cut.graph.root:
            return tuple(replace(stack, inner=self._tree(stack.inner)) for stack in self.needs.reports)
        kept = []
        for stack in scope.stacks:
            for (outer, path), new in self.stacks.items():
                if outer == stack.outer:
                    for _, leaf in stack_leaves(stack, path):
                        kept.append(Stack(stack.channel + Ref(0, path).suffix(), self._rewrite(leaf), new))
        return tuple(kept)

    def _one(self, ref: Ref, scope: Scope) -> Ref:
        found = self._rewrite(ref)
        if not isinstance(found, Ref):
            raise UsageError(
                f"{self.cut.policy.name} cuts through a value that a state cell is set to as a whole "
                f"({self.cut.graph.values[ref.value].name}{ref.suffix()})\n  at {scope.source.quoted()}\n"
                "  fix: pass it through a @learn stage first"
            )
        return found

    def _tree(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: self._rewrite(leaf) if is_ref(leaf) else leaf, tree, is_leaf=is_ref)

    def _rewrite(self, ref: Ref) -> Any:
        """A reference in terms of what this fragment has; a stack cut in pieces becomes a tree of them."""
        found = self.places.definitions[ref.value]
        if self.places.is_empty(ref):
            return ref.pick(self.cut.graph.values[ref.value].type)
        if found.kind == "given" or (
            found.kind == "node" and self.places.owner[found.what.name] == self.name
        ):
            return ref
        if found.kind in ("inner", "outer"):
            numbers = self.inner if found.kind == "inner" else self.outer
            for (scope, cell, path), new in numbers.items():
                if (scope, cell) == (found.scope.index, found.what.cell) and ref.path[: len(path)] == path:
                    return Ref(new, ref.path[len(path) :])
        if found.kind == "stack":
            return self._assemble(ref)
        return self._part(ref)

    def _assemble(self, ref: Ref) -> Any:
        if self.places.is_empty(ref):
            return ref.pick(self.cut.graph.values[ref.value].type)
        for (outer, path), new in self.stacks.items():
            if outer == ref.value and ref.path[: len(path)] == path:
                return Ref(new, ref.path[len(path) :])
        received = self._find(ref)
        if received is not None:
            return received
        stack = self.places.definitions[ref.value].what
        return _grow(stack.inner, ref.path, lambda path: self._assemble(Ref(ref.value, path)))

    def _find(self, ref: Ref) -> Ref | None:
        for name, new in self.received.items():
            for number, part in enumerate(self.crossings[name].parts):
                if covers(part, ref):
                    return Ref(new, (("item", number), *ref.path[len(part.path) :]))
        return None

    def _part(self, ref: Ref) -> Ref:
        found = self._find(ref)
        if found is None:
            raise RuntimeError(f"{self.name} has no {ref}")
        return found


def _grow(tree: Any, path: Path, leaf: Any) -> Any:
    """The tree at a path, with `leaf(its path)` for each reference in it."""
    for kind, name in path:
        tree = getattr(tree, name) if kind == "attr" else tree[name]
    flat, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_ref)
    leaves = [leaf(path + tuple(map(step_of, keys))) if is_ref(one) else one for keys, one in flat]
    return jax.tree.unflatten(treedef, leaves)


def _picking(build: Callable[[int], Any] | None, path: Path) -> Callable[[int], Any] | None:
    return build and (lambda envs: Ref(0, path).pick(build(envs)))


def _transport(*args: Any) -> Any:
    raise RuntimeError("messages are carried by the runtime")
