"""Between one environment's values and rows of batched arrays: nesting, dtypes, and `start` offsets.

Sherd counts every discrete value from zero, so a space's `start` is taken off observations and added to
actions. Converters are built once per space; what runs on every step is only indexing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.spaces import Space, Tree

RowWriter = Callable[[Tree, int, Any], None]
RowReader = Callable[[Tree], Sequence[Any] | np.ndarray]


def start_of(space: Space) -> Any:
    """The offset of a leaf's values from zero, or None where there is none.

    >>> start_of(gym_spaces.Discrete(3, start=-1)), start_of(gym_spaces.Discrete(3))
    (-1, None)
    """
    if isinstance(space, gym_spaces.Discrete):
        return int(space.start) or None
    if isinstance(space, gym_spaces.MultiDiscrete) and np.any(space.start):
        return space.start
    return None


def row_writer(space: Space) -> RowWriter:
    """A function (buffer, row, value) that writes one environment's value into a row of the buffers."""
    if isinstance(space, gym_spaces.Dict):
        return _nested_writer([(key, row_writer(child)) for key, child in space.spaces.items()])
    if isinstance(space, gym_spaces.Tuple):
        return _nested_writer([(index, row_writer(child)) for index, child in enumerate(space.spaces)])
    start = start_of(space)

    def write(buffer: Tree, row: int, value: Any) -> None:
        buffer[row] = value

    def write_from_zero(buffer: Tree, row: int, value: Any) -> None:
        buffer[row] = value - start

    return write if start is None else write_from_zero


def _nested_writer(parts: list[tuple[Any, RowWriter]]) -> RowWriter:
    def write(buffer: Tree, row: int, value: Any) -> None:
        for key, part in parts:
            part(buffer[key], row, value[key])

    return write


def action_rows(space: Space) -> RowReader:
    """A function from batched actions to a sequence of actions as each environment's space wants them.

    >>> read = action_rows(gym_spaces.Tuple([gym_spaces.Discrete(2, start=1), gym_spaces.MultiBinary(2)]))
    >>> read((np.array([0, 1]), np.array([[0, 1], [1, 1]])))[1]
    (2, array([1, 1], dtype=int8))
    """
    if isinstance(space, gym_spaces.Dict):
        keys, readers = list(space.spaces), [action_rows(child) for child in space.spaces.values()]
        return lambda batch: [
            dict(zip(keys, row)) for row in zip(*(read(batch[key]) for key, read in zip(keys, readers)))
        ]
    if isinstance(space, gym_spaces.Tuple):
        children = [action_rows(child) for child in space.spaces]
        return lambda batch: list(zip(*(read(part) for read, part in zip(children, batch))))
    start = start_of(space) or 0 if isinstance(space, gym_spaces.Discrete) else start_of(space)
    if isinstance(space, gym_spaces.Discrete):
        return lambda batch: (np.asarray(batch) + start).tolist() if start else np.asarray(batch).tolist()
    dtype = space.dtype
    if start is None:
        # A fresh copy each time: an environment may keep the action that it was given.
        return lambda batch: np.array(batch, dtype)
    return lambda batch: np.add(batch, start, dtype=dtype)


def misshapen(space: Space, value: Any, path: str = "") -> str | None:
    """What keeps a value from fitting its space's shape, naming the leaf; None when it fits.

    >>> misshapen(gym_spaces.Dict({"a": gym_spaces.Box(0, 1, (2,))}), {"a": np.zeros(3)})
    "leaf 'a' has shape (3,), its space says (2,)"
    """
    if isinstance(space, gym_spaces.Dict):
        parts: list[tuple[Any, Space]] = list(space.spaces.items())
    elif isinstance(space, gym_spaces.Tuple):
        parts = list(enumerate(space.spaces))
    elif np.shape(value) == space.shape:
        return None
    else:
        where = f"leaf {path!r}" if path else "the observation"
        return f"{where} has shape {np.shape(value)}, its space says {space.shape}"
    for key, child in parts:
        child_path = f"{path}/{key}" if path else str(key)
        try:
            fault = misshapen(child, value[key], child_path)
        except (KeyError, IndexError, TypeError):
            return f"leaf {child_path!r} is missing"
        if fault:
            return fault
    return None
