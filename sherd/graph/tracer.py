"""The backend that records what an author's loop does.

Loop bodies are recorded twice. The first pass finds out which cells a body changes; the second sees those
cells as carries. Comparing the two finds what a body recorded once would get wrong: a plain local that
passes from one turn to the next, or a body that does something else the second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from sherd.author.eager import PROPAGATED, occurrence
from sherd.author.stage import Op
from sherd.errors import Source, UsageError, author_source
from sherd.graph.ir import Carry, Node, Ref, Scope, Stack, Value
from sherd.graph.shapes import (
    Pair,
    describe,
    env_axes,
    same_type,
    shape_of,
    with_envs,
)
from sherd.graph.signature import compare_passes
from sherd.graph.traced import Traced, is_traced


@dataclass
class Pass:
    """One recording of a body."""

    items: list[Node | Scope] = field(default_factory=list)
    emitted: list[tuple[str, Any]] = field(default_factory=list)
    start: int = 0  # ids from here on were made in this pass


class Tracer:
    """The backend that records."""

    def __init__(self, num_envs: int, shapes: dict[Any, Pair]) -> None:
        self.num_envs = num_envs
        self.values: dict[int, Value] = {}
        self.pairs: dict[int, Pair] = {}
        self.cells: dict[str, Traced] = {}
        self.late_cells: dict[str, Callable[[int], Any]] = {}
        self.body = Pass()
        self._snapshots: list[dict[str, Traced]] = []
        self._counts: Counter[str] = Counter()
        self._written: dict[str, Source] = {}
        self._collected: dict[str, list[Traced]] = {}
        self._shaped = shapes  # what is known of results already, and what is found out
        self._left_early: Source | None = None
        self._closed: list[tuple[int, int, str]] = []  # ids made in a loop's body that is over, and its name
        number = jax.ShapeDtypeStruct((), jnp.int32)
        self.iteration = self.define("iteration", (number, number), Source("", 0))
        self.total = self.define("total", (number, number), Source("", 0))

    # -- values

    def define(self, name: str, pair: Pair, source: Source) -> Traced:
        """A new value of a type given at n and at 2n environments."""
        identity = len(self.values)
        self.values[identity] = Value(identity, name, pair[0], env_axes(name, *pair, source))
        self.pairs[identity] = pair
        return Traced(Ref(identity), pair[0], name)

    def types(self, tree: Any, which: int) -> Any:
        """Replace what is traced in a pytree by its type."""
        return jax.tree.map(
            lambda leaf: leaf._ref.pick(self.pairs[leaf._ref.value][which]) if is_traced(leaf) else leaf,
            tree,
            is_leaf=is_traced,
        )

    def begin(self, cells: dict[str, Pair], source: Source) -> dict[str, Traced]:
        """The cells as the loop finds them; those declared on the way are added to what is returned."""
        self.cells = {name: self.define(name, pair, source) for name, pair in cells.items()}
        root = dict(self.cells)
        self._snapshots.append(root)
        return root

    # -- the Backend protocol

    def call(self, op: Op, args: tuple[Any, ...]) -> Traced:
        source = author_source()
        self._require_whole_loops()
        self._require_visible(args, source)
        named = replace(op, name=occurrence(op.name, self._counts))
        pair = self._shape(named, args, source)
        output = self.define(named.name, pair, source)
        self.body.items.append(Node(named.name, named, refs(args), output._ref.value, source))
        return output

    def _shape(self, op: Op, args: tuple[Any, ...], source: Source) -> Pair:
        small, large = self.types(args, 0), self.types(args, 1)
        # Recording nested bodies repeatedly must not repeat the costly shaping.
        key = (op.name, source, str(small))
        if key not in self._shaped:
            one = shape_of(op, small, self.num_envs, source)
            self._shaped[key] = (one, shape_of(op, large, 2 * self.num_envs, source))
        return self._shaped[key]

    def read(self, cell: str) -> Any:
        if cell not in self.cells:
            raise UsageError(f"{cell} is read before anything was put in\n  at {author_source().quoted()}")
        return self.cells[cell]

    def write(self, cell: str, value: Any, once: bool = False) -> None:
        source = author_source()
        if once and cell in self._written:
            raise UsageError(
                f"state cell {cell!r} is written twice in one iteration\n"
                f"  first at {self._written[cell].quoted()}\n  again at {source.quoted()}\n"
                "  fix: compute the final value first and write it once, or declare a second cell"
            )
        if once:
            self._written[cell] = source
        if not is_traced(value):
            value = self.call(Op("pack", "learn", lambda tree: jax.tree.map(jnp.asarray, tree)), (value,))
        held, given = self.types(self.cells[cell], 0), self.types(value, 0)
        if not same_type(held, given):
            raise UsageError(
                f"state cell {cell!r} holds {describe(held)} but is given {describe(given)}\n"
                f"  at {source.quoted()}\n  fix: keep structure, shapes and dtypes as declared"
            )
        self.cells[cell] = value

    def declare(self, cell: str, build: Callable[[Any], Any], like: Any) -> None:
        if cell in self.cells:
            return
        source, small, large = author_source(), self.types(like, 0), self.types(like, 1)
        axes = env_axes(cell, small, large, source)

        def first(envs: int) -> Any:
            return build(with_envs(small, axes, envs))

        pair = tuple(jax.eval_shape(lambda n=n: first(n)) for n in (self.num_envs, 2 * self.num_envs))
        self.late_cells[cell] = first
        value = self.define(cell, pair, source)
        for cells in (*self._snapshots, self.cells):
            cells[cell] = value

    def types_of(self, tree: Any) -> Any:
        return self.types(tree, 0)

    def emit(self, channel: str, value: Any) -> None:
        self._require_visible(value, author_source())
        self.body.emitted.append((channel, value))

    def collected(self, channel: str) -> list[Traced]:
        return self._collected.get(channel, [])

    def scope(self, name: str, trips: int) -> Iterator[Traced]:
        source = author_source()
        if not isinstance(trips, int) or trips < 1:
            raise UsageError(
                f"loop {name!r} needs a positive whole number, got {trips!r}\n  at {source.quoted()}"
            )
        outer, before, counts, written = self.body, dict(self.cells), self._counts.copy(), dict(self._written)
        self._snapshots.append(before)
        passes = []
        inner: dict[str, Traced] = {}
        for _ in range(2):
            self.body = Pass(start=len(self.values))
            passes.append(self.body)
            self.cells = {**before, **inner}
            self._counts, self._written = counts.copy(), dict(written)
            number = jax.ShapeDtypeStruct((), jnp.int32)
            index = self.define(f"{name}.index", (number, number), source)
            try:
                yield index
            except GeneratorExit:
                self._left_early = author_source()
                raise
            if not inner:
                inner = self._carried(before, source)
        self._snapshots.pop()
        self._closed.append((passes[0].start, len(self.values), name))
        compare_passes(name, passes[0], passes[1], {c: before[c]._ref for c in inner}, inner)
        self._close(name, trips, source, (outer, before, inner, index))

    def _carried(self, before: dict[str, Traced], source: Source) -> dict[str, Traced]:
        changed = [cell for cell in before if self.cells[cell]._ref != before[cell]._ref]
        return {cell: self.define(cell, self._pair(before[cell]), source) for cell in changed}

    def _pair(self, traced: Traced) -> Pair:
        return self.types(traced, 0), self.types(traced, 1)

    def _close(self, name: str, trips: int, source: Source, around: tuple[Any, ...]) -> None:
        outer, before, inner, index = around
        after, body = self.cells, self.body
        carries = []
        self.cells = dict(before)
        for cell, seen in inner.items():
            left = self.define(cell, self._pair(before[cell]), source)
            self.cells[cell] = left
            carries.append(Carry(cell, before[cell]._ref, seen._ref.value, after[cell]._ref, left._ref.value))
        stacks, self._collected, self.body = [], {}, outer
        for channel, tree in body.emitted:
            pair = tuple(_stacked(self.types(tree, which), trips) for which in (0, 1))
            stacked = self.define(f"{name}.{channel}", pair, source)
            stacks.append(Stack(channel, refs(tree), stacked._ref.value))
            self._collected.setdefault(channel, []).append(stacked)
            if channel in PROPAGATED:
                self.emit(channel, stacked)
        scope = Scope(name, trips, index._ref.value, tuple(body.items), tuple(carries), tuple(stacks), source)
        self.body.items.append(scope)

    def _require_whole_loops(self) -> None:
        if self._left_early is not None:
            raise UsageError(
                f"a loop over a handle is left early (break or return)\n  at {self._left_early.quoted()}\n"
                "  fix: let it run; use when= or stop_when= to leave out work"
            )

    def _require_visible(self, tree: Any, source: Source) -> None:
        for leaf in jax.tree.leaves(tree, is_leaf=is_traced):
            for start, end, name in self._closed:
                if is_traced(leaf) and start <= leaf._ref.value < end:
                    raise UsageError(
                        f"{leaf} was made inside the loop {name!r} and is used outside the loop that "
                        f"defines it\n"
                        f"  at {source.quoted()}\n"
                        "  fix: pass it out through a handle: env.step(action, extra) and env.rollout, "
                        "or a state cell"
                    )

    def finish(self, root_cells: dict[str, Traced], source: Source) -> Scope:
        """The root scope, once the loop has been recorded."""
        self._require_whole_loops()
        carries = []
        for cell, inner in root_cells.items():
            outer = self.define(cell, self._pair(inner), source)
            carries.append(Carry(cell, inner._ref, inner._ref.value, self.cells[cell]._ref, outer._ref.value))
        stacks = []
        for channel, tree in self.body.emitted:
            if channel in PROPAGATED:
                pair = tuple(_typed(self.types(tree, which)) for which in (0, 1))
                value = self.define(channel, pair, source)
                stacks.append(Stack(channel, refs(tree), value._ref.value))
        return Scope("iteration", 1, -1, tuple(self.body.items), tuple(carries), tuple(stacks), source)


def refs(tree: Any) -> Any:
    """Replace what is traced in a pytree by its Ref."""
    return jax.tree.map(lambda leaf: leaf._ref if is_traced(leaf) else leaf, tree, is_leaf=is_traced)


def _typed(tree: Any) -> Any:
    """Types, also where a constant stands."""

    def type_of(leaf: Any) -> Any:
        known = isinstance(leaf, jax.ShapeDtypeStruct)
        return leaf if known else jax.eval_shape(lambda: jnp.asarray(leaf))

    return jax.tree.map(type_of, tree)


def _stacked(tree: Any, trips: int) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((trips, *leaf.shape), leaf.dtype), _typed(tree))
