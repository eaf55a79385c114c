"""Stages: the pure functions a loop is made of, and the switch that decides what calling one means.

Outside a loop a stage is an ordinary method. Inside, the active *backend* decides: the eager one runs it
on real values, the tracing one records a node. The author's text is the same.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Role = Literal["env", "act", "learn", "grad", "apply", "replay", "eval", "send", "receive"]
KeyKind = Literal["none", "one", "env"]
# A loop calls a stage without its key, so the signature as written does not bind callers.
Method = Callable[..., Any]


@dataclass(frozen=True)
class Op:
    """What a node does: a pure function with a name and a role.

    `key` says whether the function takes a random key as its last argument: one key, or one for each
    environment. `knobs` are constants that belong to the operation (the text of the graph shows them).
    """

    name: str
    role: Role
    function: Callable[..., Any]
    key: KeyKind = "none"
    knobs: tuple[tuple[str, Any], ...] = ()


class Backend(Protocol):
    """What a handle needs from its surroundings: eager execution and tracing both provide it."""

    def call(self, op: Op, args: tuple[Any, ...]) -> Any:
        """Perform or record an operation."""

    def read(self, cell: str) -> Any:
        """The present value of a state cell."""

    def write(self, cell: str, value: Any, once: bool = False) -> None:
        """Set a state cell; `once` forbids a second write in the same iteration."""

    def declare(self, cell: str, build: Callable[[Callable[[Any], Any]], Any], like: Any) -> None:
        """Add a state cell whose shape is only known now: `build(zeros)` makes its initial value."""

    def types_of(self, tree: Any) -> Any:
        """The shapes and dtypes of a pytree."""

    def scope(self, name: str, trips: int) -> Iterator[Any]:
        """Run or record a loop body `trips` times, yielding the turn's index."""

    def emit(self, channel: str, value: Any) -> None:
        """Keep this turn's value, to be stacked over the turns of the enclosing scope."""

    def collected(self, channel: str) -> Any:
        """What was emitted in the scope that closed last, with a leading axis over turns."""

    @property
    def iteration(self) -> Any:
        """The number of the training iteration, and `total`, how many the run will make."""

    @property
    def total(self) -> Any: ...

    @property
    def num_envs(self) -> int: ...


_ACTIVE: list[Backend | None] = [None]


@contextmanager
def active(backend: Backend | None) -> Iterator[None]:
    """Make a backend the one that stages talk to; None makes stages ordinary methods again."""
    _ACTIVE.append(backend)
    try:
        yield
    finally:
        _ACTIVE.pop()


def key_kind(function: Callable[..., Any], key: KeyKind = "one") -> KeyKind:
    """What random keys a function asks for: a last parameter `key` means `key`, `keys` one per environment.

    >>> key_kind(lambda obs, key: 0), key_kind(lambda obs, keys: 0), key_kind(lambda obs: 0)
    ('one', 'env', 'none')
    """
    names = list(inspect.signature(function).parameters)
    last = names[-1] if names else ""
    return key if last == "key" else "env" if last == "keys" else "none"


def _stage(method: Method, role: Role, key: KeyKind) -> Method:
    kind = key_kind(method, key)

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        backend = _ACTIVE[-1]
        if backend is None:
            return method(self, *args)
        bound = functools.partial(method, self)
        op = Op(method.__name__, role, bound, kind)
        return backend.call(op, args)

    return call


def act(method: Method) -> Method:
    """Mark a method as acting on leaves [env, ...]; a last parameter `key` gets one key per environment."""
    return _stage(method, "act", "env")


def learn(method: Method) -> Method:
    """Mark a method as preparing what is learnt from.

    A last parameter `key` gets one random key, `keys` one for every environment.
    """
    return _stage(method, "learn", "one")
