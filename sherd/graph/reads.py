"""What an author wrote and nothing ever reads: hyper-parameters and values."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, TypeVar

import jax

from sherd.author.algorithm import Algorithm
from sherd.errors import Source
from sherd.graph.ir import Graph, uses

AnyAlgorithm = TypeVar("AnyAlgorithm", bound=Algorithm)


def recording(algorithm: AnyAlgorithm) -> tuple[AnyAlgorithm, set[str]]:
    """The same algorithm, and a set that fills with the names of the fields that are read from it."""
    names = {field.name for field in dataclasses.fields(algorithm)}
    read: set[str] = set()

    def __getattribute__(self: Any, name: str) -> Any:
        if name in names:
            read.add(name)
        return object.__getattribute__(self, name)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        # A frozen dataclass lets a subclass that is not one set new attributes; this must not.
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    kind = type(algorithm)
    methods = {
        "__getattribute__": __getattribute__,
        "__setattr__": __setattr__,
        "__module__": kind.__module__,
    }
    watched_kind = type(kind.__name__, (kind,), methods)
    watched: Any = object.__new__(watched_kind)
    for name, value in vars(algorithm).items():
        object.__setattr__(watched, name, value)
    return watched, read


def unread_fields(algorithm: Algorithm, read: set[str]) -> list[str]:
    """A message for each hyper-parameter that neither the loop nor a stage reads."""
    messages = []
    for field in dataclasses.fields(algorithm):
        if field.name not in read:
            where = _field_source(type(algorithm), field.name)
            messages.append(
                f"hyper-parameter {field.name!r} of {type(algorithm).__name__} is never read, so setting it "
                f"does nothing\n  at {where.quoted() if where else type(algorithm).__qualname__}"
            )
    return messages


def _field_source(kind: type, name: str) -> Source | None:
    for base in kind.__mro__:
        if name not in inspect.get_annotations(base):
            continue
        try:
            lines, start = inspect.getsourcelines(base)
            file = inspect.getsourcefile(base)
        except (OSError, TypeError):
            return None
        for offset, line in enumerate(lines):
            if line.strip().startswith((f"{name}:", f"{name} :")):
                return Source(file or "<unknown>", start + offset)
    return None


def unused_values(graph: Graph) -> list[str]:
    """A message for each value that a stage computes and nothing uses."""
    used = uses(graph.root)
    messages = []
    for node in graph.nodes():
        if node.role not in ("act", "learn"):
            continue
        type_ = graph.values[node.output].type
        mine = [ref for ref in used if ref.value == node.output]
        parts = range(len(type_)) if type(type_) is tuple else ()
        unused = [i for i in parts if jax.tree.leaves(type_[i]) and not _covers(mine, i)]
        if not mine or unused:
            what = (
                f"the result of {node.name!r}"
                if not mine
                else f"part {unused[0]} of the result of {node.name!r}"
            )
            messages.append(f"{what} is never used\n  at {node.source.quoted()}")
    return messages


def _covers(refs: list[Any], index: int) -> bool:
    return any(not ref.path or ref.path[0] == ("item", index) for ref in refs)
