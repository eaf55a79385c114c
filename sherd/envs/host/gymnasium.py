"""Any Gymnasium environment, as n Python objects stepped one after the other.

This is the adapter that always works: a registered id, or the user's own callable. Its cost is the
simulator's plus about a microsecond per row. Environments that say that they wait are stepped all at once.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.envs.registration import EnvSpec as GymSpec

from sherd.envs.host.faults import CONSTRUCTOR, env_failed
from sherd.envs.host.leaves import action_rows, misshapen, row_writer
from sherd.envs.host.mujoco import quiet_loading
from sherd.envs.host.seeding import env_seeds
from sherd.envs.host.threads import METADATA, Threads
from sherd.errors import SherdError, UsageError, missing_extra
from sherd.spaces import EnvSpec, StepOut, Tree, require_supported, tree_map

_MUJOCO = "gymnasium.envs.mujoco"

EnvFactory = Callable[[], "gymnasium.Env[Any, Any]"]


class LoopEnv:
    """A batch of separate Gymnasium environments; row i is environment `first_index + i` of the run."""

    def __init__(self, env_id: str, factory: EnvFactory, num_envs: int, seed: int, first_index: int = 0):
        self.num_envs = num_envs
        self._id = env_id
        self._first_index = first_index
        self._seeds = env_seeds(seed, first_index, num_envs)
        self._envs = [factory() for _ in range(num_envs)]
        for name in ("observation_space", "action_space"):
            if getattr(self._envs[0], name, None) is None:
                raise UsageError(
                    f"{env_id}: the environment has no {name}\n  fix: set self.{name} in its __init__"
                )
        observation, action = self._envs[0].observation_space, self._envs[0].action_space
        require_supported(env_id, "observation", observation)
        require_supported(env_id, "action", action)
        waits = bool(getattr(self._envs[0], "metadata", {}).get(METADATA))
        self.spec = EnvSpec(env_id, observation, action, "host", waits)
        self._steps = [env.step for env in self._envs]
        self._write = row_writer(observation)
        self._read = action_rows(action)
        # A Box needs no conversion beyond NumPy's own assignment, which saves a call per row.
        self._plain = isinstance(observation, gym_spaces.Box)
        self._threads = Threads(num_envs) if waits and num_envs > 1 else None
        self._given: list[Any] = [None] * num_envs  # what each thread is to do: (action, out)

    def reset(self, obs: Tree) -> None:
        """Start every row's first episode from its own seed."""

        def start(row: int) -> None:
            try:
                observation, _ = self._envs[row].reset(seed=self._seeds[row])
                # NumPy would silently stretch a smaller observation over its row.
                if fault := misshapen(self.spec.observation, observation):
                    raise ValueError(fault)
                self._write(obs, row, observation)
            except (Exception, SystemExit) as error:
                raise env_failed(self._id, self._first_index + row, "reset", error) from error

        if self._threads is not None:
            self._threads.each(start)
        else:
            for row in range(self.num_envs):
                start(row)

    def step(self, action: Tree, out: StepOut) -> None:
        """Step every row, then reset those whose episode ended."""
        if self._threads is not None:
            self.start(range(self.num_envs), action, [out] * self.num_envs)
            self.finished(self.num_envs)
            return
        next_obs, reward, terminated, truncated = out.next_obs, out.reward, out.terminated, out.truncated
        plain, write = self._plain, self._write
        ended: list[int] = []
        row, during = 0, "step"
        try:
            for row, (step, row_action) in enumerate(zip(self._steps, self._read(action))):
                observation, reward[row], terminated[row], truncated[row], _ = step(row_action)
                if plain:
                    next_obs[row] = observation
                else:
                    write(next_obs, row, observation)
                if terminated[row] or truncated[row]:
                    ended.append(row)
            tree_map(np.copyto, out.obs, next_obs)
            during = "reset"
            for row in ended:
                write(out.obs, row, self._envs[row].reset()[0])
        except (Exception, SystemExit) as error:
            raise env_failed(self._id, self._first_index + row, during, error) from error

    def start(self, rows: Sequence[int], action: Tree, outs: Sequence[StepOut]) -> None:
        """Begin a step of some rows that wait; see `RowwiseEnv`."""
        if self._threads is None:
            raise RuntimeError("environments that do not wait have no threads")
        given = zip(self._read(action), outs)
        if isinstance(rows, range):
            self._given[rows.start : rows.stop] = given
        else:
            for row, one in zip(rows, given):
                self._given[row] = one
        self._threads.start(self._step_row, rows)

    def finished(self, least: int) -> list[int]:
        """The rows whose steps have come to an end, as soon as they are so many."""
        if self._threads is None:
            raise RuntimeError("environments that do not wait have no threads")
        return self._threads.finished(least)

    def _step_row(self, row: int) -> None:
        """What a row's thread does: a row whose episode ended is reset while others are still stepped."""
        (action, out), write, during = self._given[row], self._write, "step"
        try:
            observation, reward, terminated, truncated, _ = self._steps[row](action)
            out.reward[row], out.terminated[row], out.truncated[row] = reward, terminated, truncated
            write(out.next_obs, row, observation)
            if terminated or truncated:
                during = "reset"
                observation, _ = self._envs[row].reset()
            write(out.obs, row, observation)
        except (Exception, SystemExit) as error:
            raise env_failed(self._id, self._first_index + row, during, error) from error

    def close(self) -> None:
        """Close every environment."""
        if self._threads is not None:
            self._threads.close()
        for env in self._envs:
            env.close()


def registered(env_id: str) -> GymSpec | None:
    """Gymnasium's entry for an id, or None; `module:Id-v0` imports the module first, as Gymnasium does.

    >>> registered("CartPole-v1").id, registered("CartPol-v1")
    ('CartPole-v1', None)
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.registry.get(name)


def make_one(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """One environment by its registered id, with Gymnasium's warnings kept from the user."""
    name = env_id.rpartition(":")[2]
    try:
        with warnings.catch_warnings(), quiet_loading() if _comes_from(_MUJOCO, env_id) else nullcontext():
            warnings.simplefilter("ignore")
            return gymnasium.make(name, disable_env_checker=True, **options)
    except ImportError as error:
        raise _missing(env_id, error) from error
    except TypeError as error:
        if not options:
            raise env_failed(env_id, 0, CONSTRUCTOR, error) from error
        raise UsageError(f"{env_id} does not take these options: {error}") from error
    except gymnasium.error.Error as error:
        # DependencyNotInstalled is a gymnasium error, not an ImportError.
        raise _missing(env_id, error) from error
    except (Exception, SystemExit) as error:
        raise env_failed(env_id, 0, CONSTRUCTOR, error) from error


def _comes_from(package: str, env_id: str) -> bool:
    spec = registered(env_id)
    return spec is not None and package in str(spec.entry_point)


def _missing(env_id: str, error: Exception) -> UsageError:
    if _comes_from(_MUJOCO, env_id):
        # Gymnasium's MuJoCo environments load imageio even when nothing is drawn.
        for package in ("mujoco", "imageio"):
            if importlib.util.find_spec(package) is None:
                return missing_extra(package, "mujoco", env_id)
    if _comes_from("gymnasium.envs.box2d", env_id) and importlib.util.find_spec("Box2D") is None:
        return missing_extra("Box2D", "box2d", env_id)
    return UsageError(f"{env_id} cannot be built: {error}")


def call(env_id: str, factory: Callable[..., Any], **options: Any) -> Any:
    """What a user's callable returns; what it raises is said with the environment and the line."""
    try:
        return factory(**options)
    except SherdError:
        raise
    except (Exception, SystemExit) as error:
        raise env_failed(env_id, 0, CONSTRUCTOR, error) from error


def call_factory(env_id: str, factory: Callable[..., Any], **options: Any) -> gymnasium.Env[Any, Any]:
    """The environment that a user's callable returns, or an error that says what it returned."""
    env = call(env_id, factory, **options)
    if isinstance(env, gymnasium.Env):
        return env
    batched = isinstance(env, gymnasium.vector.VectorEnv)
    if not batched and hasattr(env, "reset") and hasattr(env, "step"):
        raise _of_no_kind(env_id, env)
    raise UsageError(
        f"{env_id} returned {'a vector environment' if batched else type(env).__name__}.\n"
        "  fix: return one gymnasium.Env; Sherd does the batching"
    )


def _of_no_kind(env_id: str, env: Any) -> UsageError:
    spec = getattr(env, "spec", None)
    has = "it has no spec" if spec is None else f"the kind in its spec is {getattr(spec, 'kind', None)!r}"
    return UsageError(
        f"{env_id}: {type(env).__name__} is neither a gymnasium.Env nor a graph environment: {has}.\n"
        "  fix: a simulator is a subclass of gymnasium.Env; an environment in JAX has "
        'spec = sherd.spaces.EnvSpec(id, observation, action, kind="graph")'
    )
