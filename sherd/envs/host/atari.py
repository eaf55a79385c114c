"""Atari games through ALE's own C++ vector environment (extra `atari`).

An id means what Gymnasium registers under it: `ALE/Pong-v5` has sticky actions (probability 0.25). The
preprocessing is the standard one: 84x84 grey frames, 4 stacked (channels first, as ALE gives them), frame
skip 4 with max-pooling, up to 30 no-ops, rewards clipped to their sign. `make_host` passes options such as
`episodic_life=True` or `repeat_action_probability=0.0` on to `ale_py.AtariVectorEnv`.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

from sherd.envs.host.seeding import env_seeds
from sherd.envs.host.vectorised import SameStepVectorEnv
from sherd.errors import UsageError, missing_extra, nearest
from sherd.spaces import HostEnv

PREFIX = "ALE/"


def names() -> list[str]:
    """Every Atari id, or none when ale_py is not installed."""
    try:
        _load("")
    except UsageError:
        return []
    return [name for name in gymnasium.registry if name.startswith(PREFIX)]


def make(env_id: str, num_envs: int, seed: int, first_index: int = 0, **options: Any) -> HostEnv:
    """A batch of one Atari game; every option of `ale_py.AtariVectorEnv` may be given."""
    vector_env = _load(env_id)
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        raise UsageError(f"no Atari game is called {env_id!r}; {nearest(env_id, names())}")
    settings = {"num_threads": min(num_envs, _cores())} | spec.kwargs | options
    try:
        env = vector_env(num_envs=num_envs, autoreset_mode="SameStep", **settings)
    except TypeError as error:
        raise UsageError(f"{env_id} does not take these options: {error}") from error
    # ALE takes one seed per row only as an array.
    return SameStepVectorEnv(env_id, env, np.array(env_seeds(seed, first_index, num_envs)), first_index)


def _cores() -> int:
    # A container or a worker may be confined to some of the machine's cores; not every system can tell.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load(env_id: str) -> Any:
    try:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise missing_extra("ale_py", "atari", env_id) from error
    if "ALE/Pong-v5" not in gymnasium.registry:
        gymnasium.register_envs(ale_py)
    return AtariVectorEnv
