"""The environment contract's types: spaces, specs, trees of arrays, step buffers.

Spaces are Gymnasium's own classes, since every user already knows them. A *tree* is a nested dict or
tuple of arrays that mirrors a `Dict` or `Tuple` space. Nothing here imports JAX: a process that only
runs simulators loads this file and must stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError

Tree = Any
Space = gym_spaces.Space[Any]

# An observation Dict with this key carries the mask of legal actions (PettingZoo's convention).
MASK_KEY = "action_mask"


@dataclass(frozen=True)
class EnvSpec:
    """What a policy needs to know of an environment: its name, its kind and its two spaces.

    >>> spec = EnvSpec("toy", gym_spaces.Box(-1, 1, (3,)), gym_spaces.Discrete(2), "host")
    >>> spec.masked
    False
    """

    id: str
    observation: Space
    action: Space
    kind: Literal["host", "graph"]
    waits: bool = False
    """Whether a step is spent waiting for something else, such as a game server."""

    @property
    def masked(self) -> bool:
        """Whether observations carry a mask of legal actions."""
        return isinstance(self.observation, gym_spaces.Dict) and MASK_KEY in self.observation.spaces


@dataclass(frozen=True)
class StepOut:
    """Preallocated arrays that one step of n host environments is written into.

    `next_obs` is where the step led; `obs` is what the policy sees next. They differ only in the rows
    whose episode ended, where `obs` already is the first observation of the new episode.
    """

    obs: Tree
    next_obs: Tree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class HostEnv(Protocol):
    """A batch of simulators in ordinary memory. Rows reset themselves when their episode ends.

    Row i is environment `first_index + i` of the run: its randomness depends on the run's seed and on
    that global index only, so that splitting a batch over processes changes nothing.
    """

    spec: EnvSpec
    num_envs: int

    def reset(self, obs: Tree) -> None:
        """Start every row's first episode and write the observations into `obs`."""

    def step(self, action: Tree, out: StepOut) -> None:
        """Apply one action per row and write what happened into `out`."""

    def close(self) -> None:
        """Free the simulators."""


@runtime_checkable
class RowwiseEnv(Protocol):
    """A host environment whose rows can be stepped each in its own time."""

    def start(self, rows: Sequence[int], action: Tree, outs: Sequence[StepOut]) -> None:
        """Begin a step of some rows: an action for each, and the arrays whose row it is written into."""

    def finished(self, least: int) -> list[int]:
        """Wait until so many of the started rows have been stepped: all that have. With 0 nobody waits."""


class GraphEnv(Protocol):
    """One environment as pure JAX functions. Sherd batches it and resets it when an episode ends."""

    spec: EnvSpec

    def reset(self, key: Any) -> tuple[Tree, Tree]:
        """Start an episode: (state, observation)."""

    def step(self, key: Any, state: Tree, action: Tree) -> tuple[Tree, Tree, Any, Any, Any]:
        """One step: (state, observation, reward, terminated, truncated), with no automatic reset."""


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to matching leaves of nested dicts and tuples.

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *parts) for parts in zip(tree, *others))
    return function(tree, *others)


def leaf_spaces(space: Space, path: str = "") -> Iterator[tuple[str, Space]]:
    """Every leaf space with its path, as error messages print it.

    >>> nested = gym_spaces.Dict({"a": gym_spaces.Tuple([gym_spaces.Discrete(2)])})
    >>> list(leaf_spaces(nested))
    [('a/0', Discrete(2))]
    """
    if isinstance(space, gym_spaces.Dict):
        for key, child in space.spaces.items():
            yield from leaf_spaces(child, f"{path}/{key}" if path else str(key))
    elif isinstance(space, gym_spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from leaf_spaces(child, f"{path}/{index}" if path else str(index))
    else:
        yield path, space


def space_map(function: Callable[[Space], Any], space: Space) -> Tree:
    """A tree shaped like the space, with `function(leaf space)` at its leaves."""
    if isinstance(space, gym_spaces.Dict):
        return {key: space_map(function, child) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(space_map(function, child) for child in space.spaces)
    return function(space)


_KEPT = {np.dtype(name) for name in ("uint8", "int8", "int16", "uint16", "int32", "float32", "bool")}


def carried_dtype(space: Space) -> np.dtype[Any]:
    """The dtype in which Sherd carries a leaf: at most 32 bits, as accelerators want it.

    >>> carried_dtype(gym_spaces.Discrete(3)), carried_dtype(gym_spaces.Box(0, 1, (2,), np.float64))
    (dtype('int32'), dtype('float32'))
    """
    dtype = np.dtype(space.dtype)
    if dtype in _KEPT:
        return dtype
    if np.issubdtype(dtype, np.floating):
        return np.dtype(np.float32)
    return np.dtype(np.int32)


def zeros(space: Space, lead: tuple[int, ...] = ()) -> Tree:
    """A tree of zeros for values of the space, with leading axes such as (time, env).

    >>> zeros(gym_spaces.Box(0, 1, (2,)), (3,)).shape
    (3, 2)
    """
    return space_map(lambda leaf: np.zeros(lead + (leaf.shape or ()), carried_dtype(leaf)), space)


def step_buffers(spec: EnvSpec, num_envs: int) -> StepOut:
    """Fresh buffers for one step of `num_envs` environments."""
    return StepOut(
        obs=zeros(spec.observation, (num_envs,)),
        next_obs=zeros(spec.observation, (num_envs,)),
        reward=np.zeros(num_envs, np.float32),
        terminated=np.zeros(num_envs, bool),
        truncated=np.zeros(num_envs, bool),
    )


_SUPPORTED = (gym_spaces.Box, gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)


def require_supported(spec_id: str, what: str, space: Space) -> None:
    """Raise a UsageError that names the leaf of a space which Sherd cannot carry."""
    for path, leaf in leaf_spaces(space):
        if not isinstance(leaf, _SUPPORTED):
            where = f"leaf {path!r} of the {what} space" if path else f"the {what} space"
            raise UsageError(
                f"{spec_id}: {where} is {leaf}, which Sherd does not support.\n"
                "  fix: wrap the environment so that it uses Box, Discrete, MultiDiscrete, MultiBinary,"
                " or Dict and Tuple of them"
            )
