"""Whether what a loop gives to `env.step` is an action of the environment's space, for all environments.

Asked once, when a loop is traced: later it would show as another library's error, or, where NumPy stretches
a single number over all environments, not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError, author_source
from sherd.spaces import Space, Tree, carried_dtype


def require_action(space: Space, action: Tree, num_envs: int) -> None:
    """Refuse an action (arrays or their types) that does not fit, at the author's line.

    Whole numbers of any dtype will do for a space of whole numbers, and any real ones for a Box of floats.

    >>> require_action(gym_spaces.Discrete(2), jnp.zeros(8, jnp.uint8), 8)
    >>> require_action(gym_spaces.Discrete(2), jnp.zeros((8, 2)), 8)
    Traceback (most recent call last):
    ...
    sherd.errors.UsageError: the action is float32 of shape (8, 2), but Discrete(2) wants int32 of shape (8,)
    ...
    """
    _require(space, action, num_envs, "")


def _require(space: Space, action: Tree, num_envs: int, path: str) -> None:
    if isinstance(space, gym_spaces.Dict):
        missing = [key for key in space.spaces if not isinstance(action, Mapping) or key not in action]
        if missing:
            raise _refused(
                path, _kind(action), space, f"return a dict with the keys {', '.join(space.spaces)}"
            )
        parts: list[tuple[Any, Space]] = list(space.spaces.items())
    elif isinstance(space, gym_spaces.Tuple):
        if not isinstance(action, tuple | list) or len(action) != len(space.spaces):
            raise _refused(path, _kind(action), space, f"return a tuple of {len(space.spaces)} actions")
        parts = list(enumerate(space.spaces))
    else:
        _require_leaf(space, action, num_envs, path)
        return
    for key, child in parts:
        _require(child, action[key], num_envs, f"{path}/{key}" if path else str(key))


def _require_leaf(space: Space, action: Any, num_envs: int, path: str) -> None:
    wanted, shape = carried_dtype(space), (num_envs, *(space.shape or ()))
    wants = f"{space} wants {wanted} of shape {shape}"
    if isinstance(action, Mapping | tuple | list) or action is None:
        raise _refused(
            path, _kind(action), wants, "give env.step one array: the first part is often the action"
        )
    given, is_shape = jnp.result_type(action), jnp.shape(action)
    what = f"{given} of shape {is_shape}"
    if not _holds(wanted, given):
        fix = f"choose one with jnp.argmax or jax.random.categorical, or cast it: .astype(jnp.{wanted})"
        raise _refused(path, what, wants, fix)
    if is_shape != shape:
        raise _refused(path, what, wants, f"return one action for each environment, with shape {shape}")


def _holds(wanted: np.dtype[Any], given: Any) -> bool:
    """Whether values of a dtype mean the same in the space's own."""
    whole = jnp.issubdtype(given, jnp.integer) or given == jnp.bool_
    return whole or (jnp.issubdtype(wanted, jnp.floating) and jnp.issubdtype(given, jnp.floating))


def _kind(action: Any) -> str:
    if isinstance(action, Mapping):
        return f"a dict with the keys {', '.join(map(str, action))}" if action else "an empty dict"
    if isinstance(action, tuple | list):
        return f"a {type(action).__name__} of {len(action)} parts"
    return "None" if action is None else "one array"


def _refused(path: str, what: str, wants: Any, fix: str) -> UsageError:
    name = f"the action's leaf {path!r}" if path else "the action"
    wants = wants if isinstance(wants, str) else f"its space is {wants}"
    return UsageError(f"{name} is {what}, but {wants}\n  at {author_source().quoted()}\n  fix: {fix}")
