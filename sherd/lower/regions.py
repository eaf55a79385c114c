"""Cut a scope's body into what the host must do and maximal regions that compile to one XLA call each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from sherd.author.keys import Frame
from sherd.author.types import EnvironmentStep
from sherd.graph.ir import Node, Ref, Scope, defined_within, uses, walk
from sherd.lower.interpret import Values, run_items
from sherd.policies.base import REDUCING
from sherd.policies.needs import covers

Item = Node | Scope

MESSAGES = ("send", "receive")


def _never(*args: Any) -> Any:
    raise RuntimeError("a host environment was stepped inside a compiled region")


NO_ENVIRONMENT = EnvironmentStep(_never)


def nodes_in(item: Item) -> list[Node]:
    """A node, or all nodes in a scope."""
    return [item] if isinstance(item, Node) else list(walk(item))


def roles_in(item: Item) -> set[str]:
    """The roles of a node, or of all nodes in a scope."""
    return {node.role for node in nodes_in(item)}


def split(
    body: tuple[Item, ...], host: Callable[[Node], bool], spmd: bool = False
) -> list[Item | list[Item]]:
    """What only the host can do, item by item, and between those items lists that compile together.

    With `spmd` a list either reduces over replicas or does not: only the former need all of them at once.
    """
    parts: list[Item | list[Item]] = []
    for item in body:
        if any(host(node) for node in nodes_in(item)):
            parts.append(item)
        elif parts and isinstance(parts[-1], list) and not (spmd and reduces(parts[-1]) != reduces([item])):
            parts[-1].append(item)
        else:
            parts.append([item])
    return parts


def delay_schedules(body: tuple[Item, ...], counters: set[int]) -> tuple[Item, ...]:
    """A body in which what depends on counters alone, such as a learning rate, stands before its first use.

    There it compiles together with its user. A call of its own costs as much as acting with a small network.
    """
    known, waiting, result = set(counters), list[Node](), list[Item]()
    for item in body:
        needed = {ref.value for ref in uses(item)}
        if isinstance(item, Node) and item.role == "learn" and needed <= known:
            known.add(item.output)
            waiting.append(item)
            continue
        for schedule in reversed(waiting):
            if schedule.output in needed:
                needed |= {ref.value for ref in uses(schedule)}
        result += [schedule for schedule in waiting if schedule.output in needed]
        waiting = [schedule for schedule in waiting if schedule.output not in needed]
        result.append(item)
    return (*result, *waiting)


def reduces(items: list[Item]) -> bool:
    """Whether items may reduce over the environments of all replicas."""
    return any(roles_in(item) & set(REDUCING) for item in items)


def inputs_of(items: list[Item]) -> list[Ref]:
    """What items use and do not define themselves, without references to parts of what is there whole."""
    inside = defined_within(items)
    wanted = {ref for item in items for ref in uses(item) if ref.value not in inside}
    return sorted(
        (ref for ref in wanted if not any(other != ref and covers(other, ref) for other in wanted)),
        key=lambda ref: (ref.value, str(ref.path)),
    )


def overlap(one: Ref, other: Ref) -> bool:
    """Whether two references have something in common."""
    return covers(one, other) or covers(other, one)


@dataclass
class Region:
    """Items compiled to one call. `donated` inputs are given up: their memory is used for the outputs."""

    items: list[Item]
    inputs: list[Ref]
    outputs: list[int]
    donated: list[Ref]
    stepping: EnvironmentStep = NO_ENVIRONMENT

    @property
    def kept(self) -> list[Ref]:
        """The inputs that are not given up."""
        return [ref for ref in self.inputs if ref not in self.donated]

    def function(self) -> Callable[..., tuple[Any, ...]]:
        """A function (donated, kept, clock, seed, env_index) -> outputs.

        `clock` is one small integer array (iteration, total, turns ...): one argument is cheaper than many.
        `seed` is the run's key as plain numbers: JAX takes a key as an argument ten microseconds later.
        """
        kept = self.kept

        def region(given: Any, others: Any, clock: Any, seed: Any, env_index: Any) -> tuple[Any, ...]:
            known = dict(zip(self.donated, given)) | dict(zip(kept, others))
            turns = tuple(clock[2 + depth] for depth in range(clock.shape[0] - 2))
            values = Values(known)
            frame = Frame(jax.random.wrap_key_data(seed), clock[0], clock[1], env_index, turns)
            run_items(self.items, values, frame, self.stepping)
            outputs = tuple(values[Ref(output)] for output in self.outputs)
            return _apart(outputs, (given, others))

        return region

    def compile(self) -> Callable[..., tuple[Any, ...]]:
        """The function as one XLA call."""
        return jax.jit(self.function(), donate_argnums=0)


def _apart(outputs: Any, inputs: Any) -> Any:
    """Keep outputs out of the inputs' memory.

    JAX hands an argument that is returned unchanged straight through, and reads large NumPy arguments in
    place: a cell could come to share memory with a rollout that simulators are about to overwrite.
    """
    given = {id(leaf) for leaf in jax.tree.leaves(inputs)}
    return jax.tree.map(lambda x: jax.lax.optimization_barrier(x) if id(x) in given else x, outputs)
