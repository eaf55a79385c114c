"""Gymnasium ids that come with a vectorised entry point.

Only two kinds keep the contract: CartPole, which has its own file, and vector environments that reset
in the same step and accept one seed per row. Everything else is better served by separate environments.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from sherd.envs.host.cartpole import ENTRY_POINT, CartPoles
from sherd.envs.host.faults import env_failed
from sherd.envs.host.leaves import row_writer, start_of
from sherd.envs.host.seeding import env_seeds
from sherd.spaces import EnvSpec, HostEnv, Space, StepOut, Tree, require_supported, space_map, tree_map


class SameStepVectorEnv:
    """A vector environment whose rows reset in the step in which they end (`AutoresetMode.SAME_STEP`)."""

    def __init__(self, env_id: str, env: VectorEnv[Any, Any, Any], seeds: Any, first_index: int = 0):
        observation, action = env.single_observation_space, env.single_action_space
        require_supported(env_id, "observation", observation)
        require_supported(env_id, "action", action)
        self.spec = EnvSpec(env_id, observation, action, "host")
        self.num_envs = env.num_envs
        self._env = env
        self._seeds = seeds
        self._indices = f"{first_index} to {first_index + env.num_envs - 1}"
        self._offsets = space_map(start_of, observation)
        self._action_offsets = space_map(lambda leaf: (leaf.dtype, start_of(leaf)), action)
        self._write = row_writer(observation)

    def reset(self, obs: Tree) -> None:
        """Start every row's first episode from its own seed."""
        try:
            first, _ = self._env.reset(seed=self._seeds)
        except (Exception, SystemExit) as error:
            raise self._failed("reset", error) from error
        self._copy(obs, first)

    def step(self, action: Tree, out: StepOut) -> None:
        """Step every row; the vector environment resets those that ended."""
        try:
            obs, reward, terminated, truncated, info = self._env.step(self._batched(action))
        except (Exception, SystemExit) as error:
            raise self._failed("step", error) from error
        self._copy(out.obs, obs)
        self._copy(out.next_obs, obs)
        out.reward[:], out.terminated[:], out.truncated[:] = reward, terminated, truncated
        rows = (out.terminated | out.truncated).nonzero()[0]
        if rows.size:
            self._write_final(self.spec.observation, out.next_obs, rows, info["final_obs"])

    def close(self) -> None:
        """Free the simulators."""
        self._env.close()

    def _failed(self, during: str, error: BaseException) -> Exception:
        failed = env_failed(self.spec.id, 0, during, error)
        # A vector environment does not say which of its rows raised.
        return type(failed)(str(failed).replace("environment 0 ", f"one of environments {self._indices} ", 1))

    def _batched(self, action: Tree) -> Tree:
        def convert(values: Any, leaf: Any) -> np.ndarray:
            dtype, start = leaf
            return np.array(values, dtype) if start is None else np.add(values, start, dtype=dtype)

        return _map_pairs(convert, action, self._action_offsets)

    def _copy(self, target: Tree, source: Tree) -> None:
        def copy(values: np.ndarray, given: Any, start: Any) -> None:
            values[...] = given if start is None else given - start

        tree_map(copy, target, source, self._offsets)

    def _write_final(self, space: Space, target: Tree, rows: np.ndarray, final: Any) -> None:
        # Gymnasium gives nested finals by key, and unnested ones as a batch or as an array of objects.
        if isinstance(final, dict):
            for key, child in space.spaces.items():  # type: ignore[attr-defined]
                self._write_final(child, target[key], rows, final[key])
            return
        write = self._write if space is self.spec.observation else row_writer(space)
        for row in rows:
            write(target, row, final[row])


def _map_pairs(function: Any, tree: Tree, pairs: Tree) -> Tree:
    """`tree_map` for a second tree whose leaves are themselves tuples."""
    if isinstance(tree, dict):
        return {key: _map_pairs(function, tree[key], pairs[key]) for key in tree}
    if isinstance(tree, tuple):
        return tuple(_map_pairs(function, part, pair) for part, pair in zip(tree, pairs))
    return function(tree, pairs)


def make(env_id: str, num_envs: int, seed: int, first_index: int = 0, **options: Any) -> HostEnv | None:
    """The vectorised form of a registered id, or None when it has none that keeps the contract.

    >>> make("Pendulum-v1", 2, seed=0) is None
    True
    """
    name = env_id.rpartition(":")[2]
    entry = gymnasium.registry[name].vector_entry_point
    # Gymnasium's phys2d and tabular vector environments are JAX programs, which host processes never load.
    if entry is None or name.startswith(("phys2d/", "tabular/")):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gymnasium.make_vec(name, num_envs, "vector_entry_point", **options)
    except (TypeError, gymnasium.error.Error):
        # An option, or a wrapper in the registration, that only the single environment knows.
        return None
    if entry == ENTRY_POINT:
        return CartPoles(env_id, env, seed, first_index)
    seeds = env_seeds(seed, first_index, num_envs)
    if _keeps_contract(env, seeds):
        return SameStepVectorEnv(env_id, env, seeds, first_index)
    env.close()
    return None


def _keeps_contract(env: VectorEnv[Any, Any, Any], seeds: Any) -> bool:
    if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        return False
    try:
        env.reset(seed=seeds)
    except Exception:
        # One generator for all rows: it refuses a list, and rows would depend on their neighbours.
        return False
    return True
