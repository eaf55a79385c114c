"""MinAtar's five games (Young and Tian, 2019), by ids such as `MinAtar/Breakout-v1` (extra `minatar`).

An id means what MinAtar registers under it: frames of 10x10 booleans with a channel for each kind of object,
sticky actions (probability 0.1) and rising difficulty. `-v1` has the actions that do something in the game,
`-v0` all six. Options such as `sticky_action_prob=0.0` go to `minatar.Environment`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium

from sherd.envs.host.gymnasium import LoopEnv, make_one
from sherd.errors import UsageError, missing_extra, nearest
from sherd.spaces import HostEnv

PREFIX = "MinAtar/"


def names() -> list[str]:
    """Every MinAtar id, or none when MinAtar is not installed."""
    try:
        _load("")
    except UsageError:
        return []
    return [name for name in gymnasium.registry if name.startswith(PREFIX)]


def make(env_id: str, num_envs: int, seed: int, first_index: int = 0, **options: Any) -> HostEnv:
    """A batch of one game; every option of `minatar.Environment` may be given."""
    _load(env_id)
    if env_id not in gymnasium.registry:
        raise UsageError(f"no MinAtar game is called {env_id!r}; {nearest(env_id, names())}")
    return LoopEnv(env_id, functools.partial(make_one, env_id, **options), num_envs, seed, first_index)


def _load(env_id: str) -> None:
    try:
        with _without_drawing():
            from minatar.gym import register_envs
    except ImportError as error:
        raise missing_extra("minatar", "minatar", env_id) from error
    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        register_envs()


@contextlib.contextmanager
def _without_drawing() -> Iterator[None]:
    """Let MinAtar load without the libraries it would draw with, and without its remark that they lack.

    Nothing is drawn here, and they would cost every process two seconds and a hundred megabytes.
    """
    hidden = (
        [] if "minatar" in sys.modules else [n for n in ("matplotlib", "seaborn") if n not in sys.modules]
    )
    root, silent, remarks = logging.getLogger(), logging.NullHandler(), logging.Filter("no such name")
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    # Without a handler, logging would give the root logger one that stays.
    root.addHandler(silent)
    root.addFilter(remarks)
    try:
        yield
    finally:
        root.removeFilter(remarks)
        root.removeHandler(silent)
        for name in hidden:
            del sys.modules[name]
