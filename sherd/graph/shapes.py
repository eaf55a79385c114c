"""What a stage would return, without running it, and which axis of it is the environments'.

Every function is shaped twice, for n and for 2n environments. The axis that grows is the environment
axis; a result that differs in anything else was not made by a pure function of its inputs.
"""

from __future__ import annotations

import dataclasses
import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from sherd.author.randomness import as_keys
from sherd.author.stage import Op, active
from sherd.errors import SherdError, Source, UsageError, is_author_file

Pair = tuple[Any, Any]  # the same type at n and at 2n environments


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Let the collector look only at what is made from here on.

    Each check for leaked tracers collects garbage; walking everything that is loaded took half of tracing.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def key_types(op: Op, num_envs: int) -> tuple[Any, ...]:
    """The types of the random keys that an operation takes."""
    if op.key == "none":
        return ()
    one = jax.eval_shape(as_keys, jax.ShapeDtypeStruct((2,), np.uint32))
    return (one if op.key == "one" else jax.ShapeDtypeStruct((num_envs,), one.dtype),)


def shape_of(op: Op, args: tuple[Any, ...], num_envs: int, source: Source) -> Any:
    """The type of an operation's result. `args` has types for leaves, or constants."""
    leaves, treedef = jax.tree.flatten((*args, *key_types(op, num_envs)))
    known = [not isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]

    def function(*unknown: Any) -> Any:
        rest = iter(unknown)
        filled = [leaf if fixed else next(rest) for leaf, fixed in zip(leaves, known)]
        return op.function(*jax.tree.unflatten(treedef, filled))

    unknown = [leaf for leaf, fixed in zip(leaves, known) if not fixed]
    try:
        with active(None), jax.checking_leaks():
            return jax.eval_shape(function, *unknown)
    except SherdError:
        raise
    except Exception as error:
        raise _explain(op, error, source) from error


def _explain(op: Op, error: Exception, source: Source) -> UsageError:
    """Say what went wrong inside a stage, at the author's own line."""
    where = author_line(error) or source
    what, fix = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", ""
    if isinstance(error, jax.errors.TracerBoolConversionError):
        what = "a Python condition (if, while, and, or) on a traced value"
        fix = "use jnp.where or jax.lax.cond, or make it a hyper-parameter"
    elif isinstance(error, dataclasses.FrozenInstanceError):
        what = "a Python side effect: it assigns to a field of the algorithm, which is frozen"
        fix = "return the value, and keep it in a state cell declared by state()"
    elif isinstance(error, jax.errors.UnexpectedTracerError) or "Leaked" in str(error):
        what = "a Python side effect: a traced value was stored outside the stage"
        fix = "return the value instead of storing it"
    elif isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        what = "a traced value is needed as a Python or NumPy number"
        fix = "use jax.numpy, or make the number a hyper-parameter"
    message = f"in stage {op.name!r}: {what}\n  at {where.quoted()}"
    if where != source:
        message += f"\n  called at {source.quoted()}"
    return UsageError(message + (f"\n  fix: {fix}" if fix else ""))


def explain_loop(error: Exception, source: Source) -> UsageError:
    """Say what went wrong in the loop's own text, outside any stage."""
    where = author_line(error) or source
    fix = "what is computed from values belongs in a stage (@act, @learn)"
    if isinstance(error, TypeError) and "argument: 'key'" in str(error):
        fix = "a method that takes a key must be a stage: put @act or @learn above it"
    return UsageError(f"in the loop: {type(error).__name__}: {error}\n  at {where.quoted()}\n  fix: {fix}")


def author_line(error: BaseException) -> Source | None:
    """The innermost line of the author's own code in an exception's traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_author_file(f.filename)]
    return Source(frames[-1].filename, frames[-1].lineno or 0) if frames else None


def env_axes(op_name: str, small: Any, large: Any, source: Source) -> tuple[int | None, ...]:
    """Leaf by leaf, the axis that grows with the number of environments."""
    if not same_structure(small, large):
        raise _impure(op_name, "another structure", small, large, source)
    axes = []
    for one, two in zip(jax.tree.leaves(small), jax.tree.leaves(large)):
        if one.dtype != two.dtype:
            raise _impure(op_name, "another dtype", one, two, source)
        if len(one.shape) != len(two.shape):
            raise _impure(op_name, "another shape", one, two, source)
        grown = [axis for axis, (a, b) in enumerate(zip(one.shape, two.shape)) if a != b]
        axes.append(grown[0] if len(grown) == 1 else None)
    return tuple(axes)


def with_envs(type_: Any, axes: tuple[int | None, ...], envs: int) -> Any:
    """A type with another number of environments.

    >>> with_envs({"a": jax.ShapeDtypeStruct((2, 3), "float32")}, (1,), 5)["a"].shape
    (2, 5)
    """
    leaves, treedef = jax.tree.flatten(type_)
    resized = [
        leaf
        if axis is None
        else jax.ShapeDtypeStruct((*leaf.shape[:axis], envs, *leaf.shape[axis + 1 :]), leaf.dtype)
        for leaf, axis in zip(leaves, axes)
    ]
    return jax.tree.unflatten(treedef, resized)


def _impure(name: str, what: str, first: Any, later: Any, source: Source) -> UsageError:
    return UsageError(
        f"stage {name!r} returns {what} on a later pass: first {describe(first)}, then {describe(later)}\n"
        f"  at {source.quoted()}\n  fix: a stage must depend on its arguments and hyper-parameters only"
    )


def describe(tree: Any) -> str:
    """A type in a few words, for messages.

    >>> describe({"a": jax.ShapeDtypeStruct((2, 3), "float32")})
    "{'a': float32[2,3]}"
    """
    short = jax.tree.map(lambda leaf: _Word(f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"), tree)
    return str(short)


class _Word(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def same_structure(one: Any, two: Any) -> bool:
    """Whether two pytrees are built alike."""
    first: Any = jax.tree.structure(one)
    return bool(first == jax.tree.structure(two))


def same_type(one: Any, two: Any) -> bool:
    """Whether two types have the same structure, shapes and dtypes."""
    if not same_structure(one, two):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two))
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
