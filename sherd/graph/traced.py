"""Traced: what a handle gives while the loop is being recorded.

It stands for a value that does not exist yet. An author may take it apart (attributes, keys, unpacking)
and pass it on; anything that would need the numbers is refused with the line that asked for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import jax

from sherd.errors import UsageError, author_source
from sherd.graph.ir import Ref


class Traced:
    """A stand-in for a value, or for a part of one."""

    __slots__ = ("_name", "_ref", "_type")

    def __init__(self, ref: Ref, type_: Any, name: str) -> None:
        object.__setattr__(self, "_ref", ref)
        object.__setattr__(self, "_type", type_)
        object.__setattr__(self, "_name", name)

    def _part(self, kind: str, key: Any, child: Any) -> Traced:
        return Traced(Ref(self._ref.value, (*self._ref.path, (kind, key))), child, self._name)

    def _is_array(self) -> bool:
        return isinstance(self._type, jax.ShapeDtypeStruct)

    @property
    def shape(self) -> tuple[int, ...]:
        if not self._is_array():
            return self.__getattr__("shape")
        return tuple(self._type.shape)

    @property
    def dtype(self) -> Any:
        return self._type.dtype if self._is_array() else self.__getattr__("dtype")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if isinstance(self._type, dict) and name in ("keys", "values", "items"):
            parts = {key: self[key] for key in self._type}  # a dict that a stage returned is walked as one
            return getattr(parts, name)
        if self._is_array() or not hasattr(self._type, name):
            fields = getattr(self._type, "_fields", None)
            has = f"it has {', '.join(fields)}" if fields else "it is an array" if self._is_array() else ""
            raise UsageError(
                f"{self} has no part {name!r}{'; ' + has if has else ''}\n  at {author_source().quoted()}\n"
                "  fix: arithmetic and array methods belong in a stage (@act, @learn), not in the loop"
            )
        return self._part("attr", name, getattr(self._type, name))

    def __getitem__(self, key: Any) -> Traced:
        if self._is_array():
            _refuse(self, "indexed", "do it in a stage (@act, @learn)")
        return self._part("item", key, self._type[key])

    def __iter__(self) -> Iterator[Traced]:
        if not isinstance(self._type, tuple | list):
            _refuse(self, "iterated over", "use env.steps(n), or do it in a stage")
        return iter([self[index] for index in range(len(self._type))])

    def __len__(self) -> int:
        if self._is_array():
            _refuse(self, "measured with len()", "use .shape, which is known")
        return len(self._type)

    def __setattr__(self, name: str, value: Any) -> None:
        _refuse(self, f"changed (attribute {name!r})", "values are immutable; build a new one in a stage")

    def __setitem__(self, key: Any, value: Any) -> None:
        _refuse(self, f"changed (item {key!r})", "values are immutable; build a new one in a stage")

    def __bool__(self) -> bool:
        _refuse(
            self,
            "used in a Python condition (if, while, and, or)",
            "use learner.step(..., when=condition), learner.every(...), a schedule of learner.progress, "
            "or jnp.where inside a stage",
        )

    def __float__(self) -> float:
        _refuse(self, "turned into a Python number", "report it with learner.report({...})")

    __int__ = __float__
    __index__ = __float__

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(self, "turned into an array or stored by Python code", "do it in a stage (@act, @learn)")

    def __str__(self) -> str:
        return f"the traced value '{self._name}{self._ref.suffix()}'"

    def __format__(self, spec: str) -> str:
        return str(self)

    __repr__ = __str__
    __hash__ = None  # type: ignore[assignment]


def _refuse(traced: Traced, what: str, fix: str) -> NoReturn:
    raise UsageError(
        f"{traced} is {what}, but its numbers do not exist while the loop is traced\n"
        f"  at {author_source().quoted()}\n  fix: {fix}"
    )


def _refuse_arithmetic(operator: str) -> Any:
    def method(self: Traced, *others: Any) -> NoReturn:
        del others
        _refuse(self, f"used in arithmetic ({operator})", "do it in a stage (@act, @learn)")

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"):
    setattr(Traced, f"__{_name}__", _refuse_arithmetic(_name))
    setattr(Traced, f"__r{_name}__", _refuse_arithmetic(_name))
for _name in ("neg", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Traced, f"__{_name}__", _refuse_arithmetic(_name))


def is_traced(leaf: Any) -> bool:
    """Whether a leaf stands for a value."""
    return isinstance(leaf, Traced)
