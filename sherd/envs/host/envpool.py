"""EnvPool's C++ environments, by ids such as `envpool/HalfCheetah-v4` (extra `envpool`).

EnvPool resets a row when the *next* action arrives and ignores that action. Here the rows that ended are
reset at once by a partial reset, so that their final observation and their first one are both known, and
no action is lost. Seeds are one per row, fixed when the pool is made: a pool that is reset again goes on
with new episodes instead of repeating the first.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from sherd.envs.host.faults import env_failed
from sherd.envs.host.leaves import start_of
from sherd.envs.host.seeding import env_seeds
from sherd.errors import UsageError, missing_extra, nearest
from sherd.spaces import EnvSpec, HostEnv, StepOut, Tree, require_supported, space_map, tree_map

PREFIX = "envpool/"
_JAX_PART = "envpool.python.lax"


class PoolEnv:
    """A batch of EnvPool environments whose rows reset in the step in which they end."""

    def __init__(self, env_id: str, pool: Any, num_envs: int, first_index: int = 0):
        observation, action = pool.single_observation_space, pool.single_action_space
        require_supported(env_id, "observation", observation)
        require_supported(env_id, "action", action)
        self.spec = EnvSpec(env_id, observation, action, "host")
        self.num_envs = num_envs
        self._pool = pool
        self._first_index = first_index
        self._offsets = space_map(start_of, observation)
        self._action_offsets = space_map(start_of, action)

    def reset(self, obs: Tree) -> None:
        """Start a new episode in every row."""
        first, info = self._pool.reset()
        self._copy(obs, info["env_id"], first)

    def step(self, action: Tree, out: StepOut) -> None:
        """Step every row, then reset those whose episode ended."""
        shifted = tree_map(lambda a, start: a if start is None else a + start, action, self._action_offsets)
        try:
            final, reward, terminated, truncated, info = self._pool.step(shifted)
        except (Exception, SystemExit) as error:
            raise env_failed(self.spec.id, self._first_index, "step", error) from error
        order = info["env_id"]
        self._copy(out.next_obs, order, final)
        out.reward[order], out.terminated[order], out.truncated[order] = reward, terminated, truncated
        tree_map(np.copyto, out.obs, out.next_obs)
        rows = (out.terminated | out.truncated).nonzero()[0]
        if rows.size:
            first, info = self._pool.reset(rows.astype(np.int32))
            self._copy(out.obs, info["env_id"], first)

    def close(self) -> None:
        """Free the pool."""
        self._pool.close()

    def _copy(self, target: Tree, rows: np.ndarray, source: Tree) -> None:
        def copy(values: np.ndarray, given: np.ndarray, start: Any) -> None:
            values[rows] = given if start is None else given - start

        tree_map(copy, target, source, self._offsets)


def names() -> list[str]:
    """Every EnvPool id with its prefix, or none when EnvPool is not installed."""
    try:
        return [PREFIX + name for name in _load("").list_all_envs()]
    except UsageError:
        return []


def make(env_id: str, num_envs: int, seed: int, first_index: int = 0, **options: Any) -> HostEnv:
    """A pool of `num_envs` environments; options go to `envpool.make`."""
    envpool = _load(env_id)
    name = env_id.removeprefix(PREFIX)
    if name not in envpool.list_all_envs():
        raise UsageError(f"EnvPool has no {name!r}; {nearest(env_id, names())}")
    seeds = env_seeds(seed, first_index, num_envs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=seeds, **options)
            return PoolEnv(env_id, pool, num_envs, first_index)
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{env_id} cannot be built: {error}") from error


def _load(env_id: str) -> Any:
    # EnvPool imports JAX for an interface of its own that we do not use; None in sys.modules makes it go
    # without, so that a process that only simulates stays small.
    hidden = "jax" not in sys.modules and _JAX_PART not in sys.modules
    if hidden:
        sys.modules[_JAX_PART] = None  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import envpool
    except ImportError as error:
        raise missing_extra("envpool", "envpool", env_id) from error
    finally:
        if hidden:
            del sys.modules[_JAX_PART]
    return envpool
