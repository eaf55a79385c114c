"""Compare two recordings of the same loop body."""

from __future__ import annotations

from typing import Any

import jax

from sherd.errors import Source, UsageError
from sherd.graph.ir import Node, Ref, Scope, is_ref, refs_in


def compare_passes(
    name: str, first: Any, second: Any, entered: dict[str, Ref], inner: dict[str, Any]
) -> None:
    """Raise unless both passes over the body of loop `name` did the same.

    A cell that the body changes is seen by the first pass as it was before the loop (`entered`) and by the
    second as a carry (`inner`): those two count as the same.
    """
    for node in _nodes(second.items):
        for ref in refs_in(node.inputs):
            if first.start <= ref.value < second.start and not _is_inner(ref, inner):
                raise _plain_local(name, node)
    carried_first = {(ref.value, ref.path): cell for cell, ref in entered.items()}
    carried_second = {(traced._ref.value, traced._ref.path): cell for cell, traced in inner.items()}
    one = _signature(first.items, carried_first, first.start)
    two = _signature(second.items, carried_second, second.start)
    for (left, where), (right, _) in zip(one, two):
        if left != right:
            raise _differs(name, where)
    if len(one) != len(two):
        longer = one if len(one) > len(two) else two
        raise _differs(name, longer[min(len(one), len(two))][1])


def _is_inner(ref: Ref, inner: dict[str, Any]) -> bool:
    return any(ref.value == traced._ref.value for traced in inner.values())


def _nodes(items: list[Node | Scope]) -> list[Node]:
    found: list[Node] = []
    for item in items:
        found += _nodes(list(item.body)) if isinstance(item, Scope) else [item]
    return found


def _signature(items: Any, carried: dict[Any, str], start: int) -> list[tuple[Any, Source]]:
    """A list that is equal for bodies that do the same, whatever their values are numbered."""

    def canonical(leaf: Any) -> Any:
        if not isinstance(leaf, Ref):
            return ("constant", str(leaf))
        for length in range(len(leaf.path) + 1):
            cell = carried.get((leaf.value, leaf.path[:length]))
            if cell is not None:
                return ("cell", cell, leaf.path[length:])
        local = leaf.value >= start  # numbered from the start of the pass, so equal in both
        return ("local", leaf.value - start, leaf.path) if local else ("outer", leaf.value, leaf.path)

    entries: list[tuple[Any, Source]] = []
    for item in items:
        if isinstance(item, Scope):
            entries.append((("scope", item.name, item.trips), item.source))
            entries += _signature(item.body, carried, start)
        else:
            inputs = [canonical(leaf) for leaf in jax.tree.leaves(item.inputs, is_leaf=is_ref)]
            entries.append((("node", item.name, item.role, tuple(map(str, inputs))), item.source))
    return entries


def _plain_local(name: str, node: Node) -> UsageError:
    return UsageError(
        f"{node.name!r} is given a plain local that was computed in the previous turn of the loop {name!r}\n"
        f"  at {node.source.quoted()}\n"
        "  fix: what passes from one turn to the next must be declared: return it from state() as "
        "shared(...) or per_env(...), and read and write it as state.<name>"
    )


def _differs(name: str, where: Source) -> UsageError:
    return UsageError(
        f"the body of the loop {name!r} did something else on its second turn\n  at {where.quoted()}\n"
        "  fix: a loop's body must be the same in every turn; express conditions with when=, "
        "learner.every(...) or a schedule"
    )
