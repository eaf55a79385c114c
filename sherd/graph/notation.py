"""How the text and the drawing of a graph write its values and types. `docs/graph.md` has the grammar."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import jax

from sherd.graph.ir import Graph, Node, Ref, Scope, Value, is_ref, refs_in
from sherd.graph.shapes import same_type

_SHORT = {"bfloat16": "bf16", "bool": "bool", "key<fry>": "key"}
_SHORT |= {
    f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)
}
# What is not broken over lines: a sum, a short record with its name, two or three names of one type.
_TOGETHER = re.compile(r"<[^<>]+>|(\w+ )?\{[^{}]{1,64}\}|(?<=[ {])\w+, (\w+, )?\w+ \w+\[")
_MANY = 9  # a nested part with more arrays than this is summed up
_MANY_FLAT = 24  # a flat dict, such as metrics, reads well for longer

Field = tuple[str, Any, Any]  # a name, a type, its environment axes


class Notation:
    """Writes the values of one graph.

    A value that holds no arrays, such as the memory of a network without one, is *empty*: there is nothing
    to compute, send or draw, so neither it nor its uses are written.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._names = {graph.iteration: "iteration", graph.total: "total"}
        self._received: dict[int, tuple[str, ...]] = {}  # the parts of messages have names of their own
        self._name(graph.root)
        cells = [cell for cell in graph.cells if len(cell.env_axes) > 1]
        self._like = {cell.name: (cell.type, cell.env_axes) for cell in cells}

    def _name(self, scope: Scope) -> None:
        self._names[scope.index] = "turn"
        for carry in scope.carries:
            self._names[carry.inner] = self._names[carry.outer] = carry.cell
        for stack in scope.stacks:
            self._names[stack.outer] = stack.channel
        for item in scope.body:
            if isinstance(item, Scope):
                self._name(item)
            else:
                self._names[item.output] = item.name
                parts = dict(item.op.knobs).get("parts") if item.role == "receive" else None
                if parts:
                    self._received[item.output] = parts

    def value(self, value: int) -> str:
        """A value, numbered and named: `%9:env`."""
        name = self._names.get(value)
        return f"%{value}:{name}" if name else f"%{value}"

    def use(self, ref: Ref) -> str:
        """A use of a value or of a part of it: `%9:env.obs`."""
        parts = self._received.get(ref.value)
        if parts and ref.path:
            return f"%{ref.value}:{parts[ref.path[0][1]]}{Ref(0, ref.path[1:]).suffix()}"
        return self.value(ref.value) + ref.suffix()

    def name(self, ref: Ref) -> str:
        """The same without the number: `env.obs`."""
        return self.use(ref).split(":", 1)[-1]

    def tree(self, tree: Any) -> str:
        """A pytree of uses and constants; parts that keep their name are written as what they are part of.

        `{obs %12[1].obs, reward %12[1].reward, extra %11[1]}` reads `{%12[1], extra %11[1]}`.
        """
        if isinstance(tree, Ref):
            return self.use(tree)
        parts = [(name, part) for name, part, _ in _fields(tree, tree)] if _is_record(tree) else None
        if parts is None:
            return "(" + ", ".join(self.tree(part) for part in tree) + ")" if _is_plain(tree) else repr(tree)
        words: list[str] = []
        for name, part in parts:
            word = self._whole(name, part) or f"{name} {self.tree(part)}"
            if not self.is_empty(part) and word not in words:
                words.append(word)
        return words[0] if len(words) == 1 and words[0][0] == "%" else "{" + ", ".join(words) + "}"

    def _whole(self, name: str, part: Any) -> str:
        """What a use is the part `name` of."""
        if isinstance(part, Ref) and part.path and part.path[-1][1] == name:
            return self.use(Ref(part.value, part.path[:-1]))
        received = isinstance(part, Ref) and part.value in self._received
        use = self.use(part) if received else ""
        return use.removesuffix(f".{name}") if use.endswith(f".{name}") else ""

    def is_empty(self, tree: Any) -> bool:
        """Whether a pytree of uses and constants holds no arrays."""
        leaves = jax.tree.leaves(tree, is_leaf=is_ref)
        return all(isinstance(leaf, Ref) and not jax.tree.leaves(self._type(leaf)) for leaf in leaves)

    def _type(self, ref: Ref) -> Any:
        value = self._graph.values.get(ref.value)
        try:
            return ref.pick(value.type) if value else 0
        except (AttributeError, KeyError, IndexError, TypeError):
            return 0  # an ill-formed graph must still print, for `check` to show

    def type(self, value: Value | None) -> str:
        """The type of a value: `like <cell>` when a state cell has the same."""
        if value is None:
            return "?"
        return self._part(value.type, value.axes_tree())

    def parts(self, value: Value) -> list[str] | None:
        """The types of a tuple's parts, each with its index, without empty ones; None for another type."""
        if type(value.type) is not tuple:
            return None
        axes = value.axes_tree()
        pairs = [
            (i, self._part(t, a)) for i, (t, a) in enumerate(zip(value.type, axes)) if jax.tree.leaves(t)
        ]
        return [f"[{index}] {text}" for index, text in pairs]

    def _part(self, type_: Any, axes: Any) -> str:
        flat = tuple(None if axis < 0 else axis for axis in jax.tree.leaves(axes))
        for cell, (known, known_axes) in self._like.items():
            if flat == known_axes and same_type(type_, known):
                return f"like {cell}"
        return render_type(type_, axes)

    def message(self, node: Node) -> str:
        """The named parts of what a node receives."""
        value = self._graph.values[node.output]
        texts = [self._part(t, a) for t, a in zip(value.type, value.axes_tree())]
        pairs = zip(texts, self._received[node.output])
        groups = [
            (", ".join(n for _, n in group), text) for text, group in groupby(pairs, key=lambda p: p[0])
        ]
        return "{" + ", ".join(f"{names} {text}" for names, text in groups) + "}"

    def arguments(self, node: Node) -> list[str]:
        """The inputs of a node as its call shows them."""
        shown = []
        for name, part in zip(_parameters(node), node.inputs):
            if not self.is_empty(part):
                constant = name and not refs_in(part)
                shown.append(f"{name}={part!r}" if constant else self.tree(part))
        return shown + [f"{name}={value}" for name, value in node.op.knobs]


def _parameters(node: Node) -> list[str]:
    """The names of a node's parameters, so that a constant can say what it is; empty where not known."""
    try:
        parameters = inspect.signature(node.op.function).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names + [""] * (len(node.inputs) - len(names))


def _is_record(tree: Any) -> bool:
    return isinstance(tree, dict) or hasattr(tree, "_fields")


def _is_plain(tree: Any) -> bool:
    return isinstance(tree, tuple | list) and not hasattr(tree, "_fields")


def _fields(type_: Any, axes: Any) -> Iterator[Field]:
    if isinstance(type_, dict):
        yield from ((str(key), part, axes[key]) for key, part in type_.items())
    else:
        yield from ((name, getattr(type_, name), getattr(axes, name)) for name in type_._fields)


def render_type(type_: Any, axes: Any, nested: bool = False) -> str:
    """A type in one line; axes are -1 where there is no environment axis, else it is marked with `e`.

    >>> array = jax.ShapeDtypeStruct((8, 4), "float32")
    >>> render_type({"obs": array, "next_obs": array, "count": array}, {"obs": 0, "next_obs": 0, "count": -1})
    '{obs, next_obs f32[8e,4], count f32[8,4]}'
    """
    leaves = jax.tree.leaves(type_)
    if isinstance(type_, jax.ShapeDtypeStruct):
        return _array(type_, axes)
    if not leaves:
        return "()"
    if not _expands(type_, len(leaves), nested):
        count = f"{len(leaves)} arrays, " if len(leaves) > 1 else ""
        return f"<{count}{sum(math.prod(leaf.shape) for leaf in leaves):,} numbers>"
    if _is_plain(type_):
        parts = [render_type(t, a, nested=True) for t, a in zip(type_, axes)]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    texts = [
        (name, render_type(t, a, nested=True)) for name, t, a in _fields(type_, axes) if jax.tree.leaves(t)
    ]
    groups = [
        (", ".join(n for n, _ in group), text) for text, group in groupby(texts, key=lambda pair: pair[1])
    ]
    return "{" + ", ".join(f"{names} {text}" for names, text in groups) + "}"


def _expands(type_: Any, leaves: int, nested: bool) -> bool:
    if isinstance(type_, dict):
        flat = all(isinstance(part, jax.ShapeDtypeStruct) for part in type_.values())
        return leaves <= (_MANY_FLAT if flat else _MANY)
    if hasattr(type_, "_fields") or _is_plain(type_):
        return not nested or leaves <= _MANY
    return False


def _array(leaf: Any, axis: int) -> str:
    dims = [f"{size}e" if index == axis else str(size) for index, size in enumerate(leaf.shape)]
    return f"{_SHORT.get(str(leaf.dtype), str(leaf.dtype))}[{','.join(dims)}]"


def wrap(line: str, indent: str, width: int) -> list[str]:
    """Break a line after commas, where it hurts least; what follows the first line is indented.

    >>> wrap("{obs f32[8e,4], choice {action, value f32[8e]}}", " ", 24)
    ['{obs f32[8e,4],', ' choice {action, value f32[8e]}}']
    """
    lines = [""]
    for word in re.split(r"(?<=,) ", _TOGETHER.sub(lambda match: match[0].replace(" ", "\0"), line)):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if len(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(indent + word)
    return [line.replace("\0", " ") for line in lines]
