"""What is wrong with a graph environment, found without running it: its functions' shapes tell.

Compiled into a program, the same mistakes would show as errors of JAX or Flax that name no line of the
author's, or be cast away in silence.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.envs.host.faults import blamed_line
from sherd.envs.host.faulty_leaf import Fault, faults
from sherd.errors import SherdError, Source
from sherd.spaces import GraphEnv, Tree, zeros

_RETURNS = {
    "reset": ("state", "observation"),
    "step": ("state", "observation", "reward", "terminated", "truncated"),
}
# Shapes say nothing of values, and a leaf that is in no space is left behind by the batch.
_PASSED_OVER = ("finite", "range", "extra")


def graph_faults(env: GraphEnv) -> Iterator[Fault]:
    """Every fault in the shapes of what `reset` and `step` return.

    >>> from sherd.envs.graph.registry import make
    >>> list(graph_faults(make("graph/CartPole-v1")))
    []
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    try:
        state, observation = _outcome(env, "reset", key)
        yield from _observation_faults(env, "reset", observation)
        # As the batch carries it: without weak types.
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        stepped, observation, reward, *flags = _outcome(env, "step", key, state, zeros(env.spec.action))
    except _Faulty as error:
        yield error.fault
        return
    yield from _state_faults(env, state, stepped)
    yield from _observation_faults(env, "step", observation)
    yield from _number_faults(env, reward, flags)


class _Faulty(Exception):
    """A method has no result that could be looked at."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def _outcome(env: GraphEnv, method: str, *args: Any) -> Any:
    try:
        outcome = jax.eval_shape(getattr(env, method), *args)
    except SherdError:
        raise
    except Exception as error:
        raise _Faulty(_raised(env, method, error)) from error
    names = _RETURNS[method]
    if not isinstance(outcome, tuple | list) or len(outcome) != len(names):
        size = f"{len(outcome)} values" if isinstance(outcome, tuple | list) else "one value"
        what = f"it returns {size}, not {len(names)}"
        raise _Faulty(_fault(env, method, "api", "", what, f"return {', '.join(names)}"))
    return outcome


def _raised(env: GraphEnv, method: str, error: Exception) -> Fault:
    lines = str(error).splitlines()
    what, fix = f"{type(error).__name__}: {lines[0] if lines else ''}", "mend that line"
    if isinstance(error, jax.errors.TracerBoolConversionError):
        what = "a Python condition (if, while, and, or) on a traced value"
        fix = "use jnp.where or jax.lax.cond"
    elif isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        what = "a traced value is needed as a Python or NumPy number"
        fix = "use jax.numpy throughout"
    return _fault(env, method, "raised", "", what, fix, blamed_line(error))


def _observation_faults(env: GraphEnv, method: str, observation: Tree) -> Iterator[Fault]:
    def example(leaf: Any) -> Any:
        return np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf.dtype, np.dtype) else np.array(None)

    for fault in faults(env.spec.observation, jax.tree.map(example, observation), carried=True):
        if fault.kind not in _PASSED_OVER:
            fix = fault.fix.replace("np.", "jnp.", 1) if fault.kind == "dtype" else fault.fix
            yield _fault(env, method, fault.kind, fault.leaf, fault.what, fix)


def _state_faults(env: GraphEnv, before: Tree, after: Tree) -> Iterator[Fault]:
    flat: list[Any] = [jax.tree_util.tree_flatten_with_path(state) for state in (before, after)]
    first, then = flat
    if first[1] != then[1]:
        what = "the state is built otherwise than the one that reset returns"
        fix = "return a state of the same type, with the same fields"
        yield _fault(env, "step", "state", "state", f"{what}: {then[1]}, not {first[1]}", fix)
        return
    for (path, old), (_, new) in zip(first[0], then[0]):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            leaf = f"state{jax.tree_util.keystr(path)}"
            what = f"{leaf} is {_type(new)}, but reset returns it as {_type(old)}"
            fix = "keep the shapes and dtypes of the state, for instance with jnp.astype"
            yield _fault(env, "step", "state", leaf, what, fix)


def _number_faults(env: GraphEnv, reward: Any, flags: list[Any]) -> Iterator[Fault]:
    real = isinstance(reward, jax.ShapeDtypeStruct) and not jnp.issubdtype(reward.dtype, jnp.complexfloating)
    if not real or reward.shape:
        what = f"the reward is {_type(reward)}, not one number"
        yield _fault(env, "step", "reward", "reward", what, "return a number without axes, such as x[0]")
    for name, flag in zip(_RETURNS["step"][3:], flags):
        if not isinstance(flag, jax.ShapeDtypeStruct) or flag.shape or flag.dtype != bool:
            what = f"{name} is {_type(flag)}, not one bool"
            yield _fault(env, "step", "flag", name, what, f"return a comparison, or {name}.astype(bool)")


def _type(leaf: Any) -> str:
    known = isinstance(leaf, jax.ShapeDtypeStruct)
    return f"{leaf.dtype} of shape {leaf.shape}" if known else f"a {type(leaf).__name__}"


def _fault(
    env: GraphEnv, method: str, kind: str, leaf: str, what: str, fix: str, line: Source | None = None
) -> Fault:
    """A fault whose text names the method, and the line: that of the method where none is known better."""
    code = getattr(inspect.unwrap(getattr(env, method)), "__code__", None)
    if line is None and code is not None:
        line = Source(code.co_filename, code.co_firstlineno)
    where = f"\n  at {line.quoted()}" if line else ""
    return Fault(kind, leaf, f"{type(env).__name__}.{method}: {what}{where}", fix)
