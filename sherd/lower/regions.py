"""Cut a scope's body into what the host must do and maximal regions that compile to one XLA call each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from sherd.author.keys import Frame
from sherd.author.types import EnvironmentStep
from sherd.graph.ir import Node, Ref, Scope, defines, uses, walk
from sherd.lower.interpret import Values, run_items

Item = Node | Scope


def _never(*args: Any) -> Any:
    raise RuntimeError("a host environment was stepped inside a compiled region")


NO_ENVIRONMENT = EnvironmentStep(_never)


def on_host(item: Item) -> bool:
    """Whether an item steps a host environment, so that it cannot be compiled."""
    nodes = [item] if isinstance(item, Node) else list(walk(item))
    return any(node.role == "env" for node in nodes)


def split(body: tuple[Item, ...]) -> list[Item | list[Item]]:
    """Host items by themselves, and between them lists of items that compile together."""
    parts: list[Item | list[Item]] = []
    for item in body:
        if on_host(item):
            parts.append(item)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(item)
        else:
            parts.append([item])
    return parts


def inputs_of(items: list[Item]) -> list[Ref]:
    """What items use and do not define themselves, without references to parts of what is there whole."""
    inside = _defined_within(items)
    wanted = {ref for item in items for ref in uses(item) if ref.value not in inside}
    return sorted(
        (ref for ref in wanted if not any(other != ref and _contains(other, ref) for other in wanted)),
        key=lambda ref: (ref.value, str(ref.path)),
    )


def _defined_within(items: list[Item]) -> set[int]:
    inside: set[int] = set()
    for item in items:
        inside.update(defines(item))
        if isinstance(item, Scope):
            inside |= {item.index, *(carry.inner for carry in item.carries)} | _defined_within(
                list(item.body)
            )
    return inside


def _contains(whole: Ref, part: Ref) -> bool:
    return whole.value == part.value and part.path[: len(whole.path)] == whole.path


@dataclass
class Region:
    """Items compiled to one call. `donated` inputs are given up: their memory is used for the outputs."""

    items: list[Item]
    inputs: list[Ref]
    outputs: list[int]
    donated: list[Ref]

    def compile(self) -> Callable[..., tuple[Any, ...]]:
        """A function (donated, kept, clock, seed, env_index) -> outputs.

        `clock` is one small integer array (iteration, total, turns ...): one argument is cheaper than many.
        """
        kept = [ref for ref in self.inputs if ref not in self.donated]

        def region(given: Any, others: Any, clock: Any, seed: Any, env_index: Any) -> tuple[Any, ...]:
            known = dict(zip(self.donated, given)) | dict(zip(kept, others))
            turns = tuple(clock[2 + depth] for depth in range(clock.shape[0] - 2))
            values = Values(known)
            run_items(self.items, values, Frame(seed, clock[0], clock[1], env_index, turns), NO_ENVIRONMENT)
            outputs = tuple(values[Ref(output)] for output in self.outputs)
            return _apart(outputs, (given, others))

        return jax.jit(region, donate_argnums=0)


def _apart(outputs: Any, inputs: Any) -> Any:
    """Keep outputs out of the inputs' memory.

    JAX hands an argument that is returned unchanged straight through, and reads large NumPy arguments in
    place: a cell could come to share memory with a rollout that simulators are about to overwrite.
    """
    given = {id(leaf) for leaf in jax.tree.leaves(inputs)}
    return jax.tree.map(lambda x: jax.lax.optimization_barrier(x) if id(x) in given else x, outputs)
