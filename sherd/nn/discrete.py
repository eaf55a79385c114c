"""Discrete actions as indices: which space takes which algorithm, legal actions, a policy over them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.distributions import NEVER, distribution
from sherd.nn.kinds import Categorical
from sherd.spaces import MASK_KEY, EnvSpec, Tree, carried_dtype


def require_discrete(spec: EnvSpec) -> gym_spaces.Discrete:
    """The action space, or a UsageError that says what to use instead."""
    if isinstance(spec.action, gym_spaces.Discrete):
        return spec.action
    others = "ddpg, td3, sac or ppo" if isinstance(spec.action, gym_spaces.Box) else "ppo"
    raise UsageError(
        f"{spec.id}: a value for every action needs Discrete actions, but they are {spec.action}.\n"
        f"  fix: use {others}"
    )


def action_of(space: gym_spaces.Discrete, index: jax.Array) -> jax.Array:
    """The action that an index among the values stands for: they differ where a space starts elsewhere.

    >>> action_of(gym_spaces.Discrete(3, start=5), jnp.array([0, 2])).tolist()
    [5, 7]
    """
    return (index + int(space.start)).astype(carried_dtype(space))


def index_of(space: gym_spaces.Discrete, action: jax.Array) -> jax.Array:
    """The index of an action among the values.

    >>> index_of(gym_spaces.Discrete(3, start=5), jnp.array([5, 7])).tolist()
    [0, 2]
    """
    return jnp.asarray(action).astype(jnp.int32) - int(space.start)


def legal_only(spec: EnvSpec, values: jax.Array, obs: Tree) -> jax.Array:
    """Values [..., actions], so low for actions that the observations' mask forbids that none is the best."""
    return jnp.where(jnp.asarray(obs[MASK_KEY]) != 0, values, NEVER) if spec.masked else values


def categorical(spec: EnvSpec, logits: jax.Array, obs: Tree) -> Categorical:
    """A policy over the legal actions, from logits [..., actions]: discrete SAC's, for example.

    >>> spec = EnvSpec("toy", gym_spaces.Box(-1, 1, (3,)), gym_spaces.Discrete(2), "host")
    >>> categorical(spec, jnp.array([[0.0, 1.0]]), jnp.zeros((1, 3))).mode().tolist()
    [1]
    """
    found = distribution(spec.action, logits, obs[MASK_KEY] if spec.masked else None)
    if not isinstance(found, Categorical):
        raise UsageError(f"{spec.id}: logits are of Discrete actions, not of {spec.action}.")
    return found
