"""What is wrong with a value that should lie in a space: named leaf by leaf, with the way to mend it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.spaces import MASK_KEY, Space, carried_dtype


@dataclass(frozen=True)
class Fault:
    """One leaf's fault: a short kind (to report it once), the leaf's path, the text and the mend."""

    kind: str
    leaf: str
    what: str
    fix: str


class Unsound(UsageError):
    """An environment that cannot be trained on, with everything that is known to be wrong with it."""

    def __init__(self, found: Sequence[Fault]) -> None:
        super().__init__(f"{found[0].what}\n  fix: {found[0].fix}")
        self.found = found


def faults(space: Space, value: Any, path: str = "", carried: bool = False) -> Iterator[Fault]:
    """Every fault of a value; `carried` compares with the dtypes in which Sherd carries it.

    >>> nested = gym_spaces.Dict({"speed": gym_spaces.Box(-1, 1, (2,))})
    >>> [fault.what for fault in faults(nested, {"speed": np.zeros(2)})]
    ["leaf 'speed' has dtype float64, its space says float32"]
    """
    if isinstance(space, gym_spaces.Dict):
        if not isinstance(value, Mapping):
            yield Fault("type", path, f"{named(path)} is {_type(value)}, not a dict", "return a dict")
            return
        children: list[tuple[Any, Space]] = list(space.spaces.items())
        for key in value:
            if key not in space.spaces:
                leaf = _join(path, key)
                yield Fault("extra", leaf, f"{named(leaf)} is not in the space", "drop it, or declare it")
    elif isinstance(space, gym_spaces.Tuple):
        children = list(enumerate(space.spaces))
        if not isinstance(value, (tuple, list)) or len(value) != len(children):
            length = f" of length {len(value)}" if isinstance(value, (tuple, list)) else ""
            what = f"{named(path)} is {_type(value)}{length}, not a tuple of length {len(children)}"
            yield Fault("type", path, what, "return a tuple with one part per sub-space")
            return
    else:
        yield from _leaf_faults(space, value, path, carried)
        return
    for key, child in children:
        leaf = _join(path, key)
        if isinstance(space, gym_spaces.Dict) and key not in value:
            yield Fault(
                "missing", leaf, f"{named(leaf)} is missing", "return every key that the space declares"
            )
        else:
            yield from faults(child, value[key], leaf, carried)


def _leaf_faults(space: Space, value: Any, path: str, carried: bool) -> Iterator[Fault]:
    name = named(path)
    array = np.asarray(value) if value is not None else np.array(None)
    if array.dtype == object:
        yield Fault("type", path, f"{name} is {_type(value)}, not an array", "return an array of numbers")
        return
    if array.shape != space.shape:
        what = f"{name} has shape {array.shape}, its space says {space.shape}"
        yield Fault("shape", path, what, "reshape the value, or declare the shape that is returned")
        return
    expected = carried_dtype(space) if carried else np.dtype(space.dtype)
    loose = not isinstance(space, gym_spaces.Box) and array.dtype.kind in "iub"
    if array.dtype != expected and not loose:
        what = f"{name} has dtype {array.dtype}, its space says {expected}"
        fix = f"return it as np.{expected}, or declare dtype=np.{array.dtype} in the space"
        yield Fault("dtype", path, what, fix)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = array[~np.isfinite(array)].flat[0]
        yield Fault(
            "finite", path, f"{name} holds {bad}", "keep the simulation finite, for instance by clipping"
        )
    elif (low_high := _bounds(space)) and not _within(array, *low_high):
        bad = array[~((array >= low_high[0]) & (array <= low_high[1]))].flat[0]
        what = f"{name} holds {bad}, which lies outside {space}"
        yield Fault("range", path, what, "clip the value, or widen the space")


def _bounds(space: Space) -> tuple[Any, Any] | None:
    if isinstance(space, gym_spaces.Box):
        return space.low, space.high
    if isinstance(space, gym_spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    if isinstance(space, gym_spaces.MultiDiscrete):
        start = np.asarray(space.start)
        return start, start + np.asarray(space.nvec) - 1
    return (0, 1) if isinstance(space, gym_spaces.MultiBinary) else None


def _within(array: np.ndarray, low: Any, high: Any) -> bool:
    return bool((array >= low).all() and (array <= high).all())


def mask_fault(action: Space, observation: Any, last: bool) -> Fault | None:
    """What is wrong with an observation's mask of legal actions; at an episode's end it may be empty.

    >>> mask_fault(gym_spaces.Discrete(3), {"action_mask": np.ones(2, np.int8)}, last=False).what
    "leaf 'action_mask' has 2 entries for 3 actions"
    """
    if not isinstance(observation, Mapping) or MASK_KEY not in observation:
        return None
    mask = np.asarray(observation[MASK_KEY])
    counts = action_counts(action)
    if counts is None:
        what = f"leaf {MASK_KEY!r} masks {action}, whose actions cannot be counted"
        return Fault("mask", MASK_KEY, what, "give masks with Discrete or MultiDiscrete actions only")
    if mask.size != sum(counts):
        what = f"leaf {MASK_KEY!r} has {mask.size} entries for {sum(counts)} actions"
        return Fault("mask", MASK_KEY, what, "give the mask one entry per action")
    parts = np.split(mask.ravel(), np.cumsum(counts)[:-1])
    if not last and not all(part.any() for part in parts):
        what = f"leaf {MASK_KEY!r} is all zero while the episode goes on"
        return Fault("mask", MASK_KEY, what, "leave at least one legal action, or end the episode")
    return None


def action_counts(action: Space) -> list[int] | None:
    """How many choices each part of a countable action has, or None.

    >>> action_counts(gym_spaces.MultiDiscrete([2, 3])), action_counts(gym_spaces.Box(0, 1))
    ([2, 3], None)
    """
    if isinstance(action, gym_spaces.Discrete):
        return [int(action.n)]
    if isinstance(action, gym_spaces.MultiDiscrete):
        return [int(count) for count in action.nvec.ravel()]
    return None


def sample_action(action: Space, observation: Any) -> Any:
    """A random action, a legal one where the observation carries a usable mask."""
    counts = action_counts(action)
    if not isinstance(observation, Mapping) or MASK_KEY not in observation or counts is None:
        return action.sample()
    mask = np.asarray(observation[MASK_KEY]).ravel().astype(np.int8)
    parts = tuple(np.split(mask, np.cumsum(counts)[:-1]))
    if mask.size != sum(counts) or not all(part.any() for part in parts):
        return action.sample()
    return action.sample(mask if isinstance(action, gym_spaces.Discrete) else parts)


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """The path of the first leaf in which two trees differ, or None.

    >>> difference({"a": (1, 2)}, {"a": (1, 3)})
    'a/1'
    """
    if isinstance(one, Mapping):
        found = (difference(one[key], other[key], _join(path, key)) for key in one)
    elif isinstance(one, (tuple, list)):
        found = (difference(*pair, _join(path, index)) for index, pair in enumerate(zip(one, other)))
    else:
        return None if np.array_equal(one, other) else path
    return next((leaf for leaf in found if leaf is not None), None)


def flat(value: Any) -> np.ndarray:
    """All numbers of a tree in one row.

    >>> flat({"a": (1, np.array([2, 3]))})
    array([1., 2., 3.])
    """
    if isinstance(value, Mapping):
        return np.concatenate([flat(part) for part in value.values()])
    if isinstance(value, (tuple, list)):
        return np.concatenate([flat(part) for part in value])
    return np.asarray(value, np.float64).ravel()


def named(path: str) -> str:
    """A leaf of an observation as messages speak of it."""
    return f"leaf {path!r}" if path else "the observation"


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _type(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
