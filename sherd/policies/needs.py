"""What one fragment needs: found by walking back from its nodes to where each value is.

A node's output that lives elsewhere is received where it is defined, at that scope's cadence. A carry becomes
a mirror: the fragment carries the parts it needs by itself and receives only what the writer changes. What
leaves a loop is received once, behind it, unless the fragment has it inside the loop anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sherd.graph.ir import Ref, Scope, Step, refs_in
from sherd.policies.places import Definition, Places, extend, stack_leaves

Path = tuple[Step, ...]


@dataclass(frozen=True)
class Refresh:
    """The part of a received value at `inside` becomes the part of a mirrored cell at `path`."""

    inside: Path
    cell: str
    path: Path


@dataclass
class Part:
    """One reference that a fragment receives: where it is defined, and when it is first used."""

    ref: Ref
    source: str
    scope: Scope  # in whose body it crosses
    position: int
    first_use: int
    refreshes: list[Refresh] = field(default_factory=list)


class Needs:
    """The parts that a fragment receives, the parts of cells it mirrors, the leaves it stacks by itself."""

    def __init__(self, places: Places, fragment: str, given: Sequence[Ref] = ()) -> None:
        self.places, self.fragment, self.given = places, fragment, given  # `given` is what others receive
        self.parts: dict[Ref, Part] = {}
        self.mirrors: dict[tuple[int, str], set[Path]] = {}  # (scope, cell) -> parts of the cell
        self.stacked: dict[int, set[Path]] = {}  # stack -> leaves that are stacked here
        self.reports = [s for s in places.graph.reports if self._reports(s)]
        before: Any = None
        while before != (before := self._state()):
            # A loop's result is local if something in the loop needed it: known after one more round.
            self._had, self.parts = dict(self.parts), {}
            self._seen: set[Ref] = set()
            self._collect(places.graph.root)
        self._resolve_refreshes()

    def _state(self) -> Any:
        return (
            set(self.parts),
            {k: frozenset(v) for k, v in self.mirrors.items()},
            {k: frozenset(v) for k, v in self.stacked.items()},
        )

    def _reports(self, stack: Any) -> bool:
        refs = refs_in(stack.inner)
        homes = [home for home in map(self.places.home, refs) if home]
        return bool(homes) and homes[0] == self.fragment

    def _collect(self, scope: Scope) -> None:
        places = self.places
        for item in scope.body:
            if isinstance(item, Scope):
                if places.takes_part(self.fragment, item):
                    self._collect(item)
            elif places.owner[item.name] == self.fragment:
                for ref in refs_in(item.inputs):
                    self._need(ref, places.positions[item.output])
        end = places.ends[scope.index]
        for carry in scope.carries:
            if places.home(Ref(carry.inner)) == self.fragment:  # the owner of a cell has all of it
                self._need(Ref(carry.inner), end)
        if scope is places.graph.root:
            told = [ref for stack in self.reports for ref in refs_in(stack.inner)]
            for ref in (*told, *self.given):
                self._need(ref, end)

    def _need(self, ref: Ref, used: int) -> None:
        found = self.places.definitions[ref.value]
        if self.places.is_empty(ref):
            return
        if found.kind == "node":
            if self.places.owner[found.what.name] != self.fragment:
                self._receive(ref, found, found.scope, used)
        elif found.kind == "inner":
            self._mirror(ref, found)
        elif found.kind == "outer":
            self._need_outer(ref, found, used)
        elif found.kind == "stack":
            self._need_stack(ref, found, used)

    def _mirror(self, ref: Ref, found: Definition) -> None:
        carry, scope = found.what, found.scope
        self.mirrors.setdefault((scope.index, carry.cell), set()).add(ref.path)
        if ref in self._seen:
            return
        self._seen.add(ref)
        self._need(extend(carry.result, ref.path), self.places.ends[scope.index])
        if scope is not self.places.graph.root:
            self._need(extend(carry.initial, ref.path), self.places.positions[scope.index])

    def _need_outer(self, ref: Ref, found: Definition, used: int) -> None:
        carry, scope = found.what, found.scope
        mirrored = self.mirrors.get((scope.index, carry.cell), ())
        home = self.places.home(ref)
        if home in (None, self.fragment) or any(ref.path[: len(path)] == path for path in mirrored):
            self._mirror(Ref(carry.inner, ref.path), Definition("inner", scope, 0, carry))
        else:
            self._receive(ref, found, self.places.parents[scope.index], used)

    def _need_stack(self, ref: Ref, found: Definition, used: int) -> None:
        scope = found.scope
        for path, leaf in stack_leaves(found.what, ref.path):
            if self.places.is_empty(leaf):
                continue
            nested = self.places.definitions[leaf.value]
            mine = self.places.home(leaf) in (None, self.fragment)
            if self.places.takes_part(self.fragment, scope) and (mine or self._has(leaf)):
                self.stacked.setdefault(ref.value, set()).add(path)
                self._need(leaf, self.places.ends[scope.index])
            elif nested.kind == "stack" and len(stack_leaves(nested.what, leaf.path)) > 1:
                for inner, _ in stack_leaves(nested.what, leaf.path):
                    self._need(Ref(ref.value, path + inner[len(leaf.path) :]), used)
            else:
                self._receive(Ref(ref.value, path), found, self.places.parents[scope.index], used)

    def _has(self, leaf: Ref) -> bool:
        """Whether the fragment has a value inside the loop for another reason."""
        found = self.places.definitions[leaf.value]
        if found.kind == "inner":
            paths = self.mirrors.get((found.scope.index, found.what.cell), ())
            return any(leaf.path[: len(path)] == path for path in paths)
        return any(covers(part, leaf) for part in self._had)

    def _receive(self, ref: Ref, found: Definition, scope: Scope, used: int) -> None:
        source = self.places.home(ref)
        if source is None:
            raise RuntimeError(f"nobody computes {ref}")
        known = self.parts.get(ref)
        if known:
            known.first_use = min(known.first_use, used)
        else:
            self.parts[ref] = Part(ref, source, scope, found.position, used)

    def _resolve_refreshes(self) -> None:
        """Which received part becomes which part of a mirrored cell."""
        root = self.places.graph.root
        self._widest()
        for carry in root.carries:
            for path in self.mirrors.get((root.index, carry.cell), ()):
                result = extend(carry.result, path)
                while True:
                    part = next((part for ref, part in self.parts.items() if covers(ref, result)), None)
                    if part:
                        part.refreshes.append(Refresh(result.path[len(part.ref.path) :], carry.cell, path))
                    found = self.places.definitions[result.value]
                    if part or found.kind != "outer":
                        break
                    result = extend(found.what.result, result.path)

    def _widest(self) -> None:
        """Drop parts of what is there whole."""
        for ref in [ref for ref in self.parts if any(o != ref and covers(o, ref) for o in self.parts)]:
            wide = next(other for other in self.parts if other != ref and covers(other, ref))
            self.parts[wide].first_use = min(self.parts[wide].first_use, self.parts[ref].first_use)
            del self.parts[ref]
        self.mirrors = {key: _shortest(paths) for key, paths in self.mirrors.items()}
        self.stacked = {key: _shortest(paths) for key, paths in self.stacked.items()}


def _shortest(paths: set[Path]) -> set[Path]:
    return {path for path in paths if not any(q != path and path[: len(q)] == q for q in paths)}


def covers(whole: Ref, part: Ref) -> bool:
    """Whether one reference includes another."""
    return whole.value == part.value and part.path[: len(whole.path)] == whole.path
