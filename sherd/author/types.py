"""The values that handles give to an author, all of them named pytrees of arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Tree = Any


class Transition(NamedTuple):
    """One step of every environment, leaves [env, ...]; a rollout is the same with [time, env, ...].

    `next_obs` is where the step led, also when the episode ended there, so that a truncated episode can
    be bootstrapped from it. `first` says that `obs` began an episode. `extra` is what the author recorded.
    """

    obs: Tree
    action: Tree
    reward: Tree
    terminated: Tree
    truncated: Tree
    next_obs: Tree
    first: Tree
    extra: Tree


class Episode(NamedTuple):
    """Per environment: whether an episode ended at this step, and its return and length if so."""

    ended: Tree
    episode_return: Tree
    episode_length: Tree


class EnvState(NamedTuple):
    """The state cell behind the `env` handle. `simulator` is empty for host environments."""

    simulator: Tree
    obs: Tree
    first: Tree
    episode_return: Tree
    episode_length: Tree


class LearnerState(NamedTuple):
    """The state cell behind the `learner` handle.

    With several optimisers, `optimiser` and `updates` are dicts by the part of the parameters they change.
    `stopped` and `failed` hold the iteration in which learning was stopped early or met a value that is
    not finite, or -1. Storing the iteration instead of a flag means that nobody has to reset it.
    """

    params: Tree
    optimiser: Tree
    updates: Tree
    stopped: Tree
    failed: Tree


class Update(NamedTuple):
    """What `learner.step` gives: the loss' metrics, and its `rows`, which keep their environment axis."""

    metrics: Tree
    rows: Tree


@dataclass(frozen=True)
class Cell:
    """Declared state. Build it with `shared` or `per_env`."""

    initial: Tree
    per_env: bool

    def build(self, num_envs: int) -> Tree:
        """The initial value for a number of environments."""
        if not self.per_env:
            return jax.tree.map(jnp.asarray, self.initial)
        return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], num_envs, axis=0), self.initial)


def shared(initial: Tree) -> Cell:
    """Declare state of which the run has one, such as statistics or target parameters.

    >>> shared(jnp.zeros(3)).build(num_envs=2).shape
    (3,)
    """
    return Cell(initial, per_env=False)


def per_env(initial: Tree) -> Cell:
    """Declare state that every environment has its own of, given for one environment.

    >>> per_env(jnp.zeros(3)).build(num_envs=2).shape
    (2, 3)
    """
    return Cell(initial, per_env=True)


@dataclass(frozen=True)
class EnvironmentStep:
    """How a backend steps its environments: (EnvState, action, keys) -> (EnvState, Transition, Episode)."""

    function: Callable[..., Any]
