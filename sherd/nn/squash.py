"""Bounded actions: between a Box and the unit cube, and the normal distribution squashed into one."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.spaces import EnvSpec

# The range of log standard deviations of CleanRL's SAC, which has it from Yarats and Kostrikov's (2020).
LOG_STD_LOW, LOG_STD_HIGH = -5.0, 2.0


def require_bounded(spec: EnvSpec) -> gym_spaces.Box:
    """The action space, a Box of floats with finite bounds, or a UsageError that says what else to do."""
    space = spec.action
    if not isinstance(space, gym_spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        others = "dqn, sac or ppo" if isinstance(space, gym_spaces.Discrete) else "ppo"
        raise UsageError(
            f"{spec.id}: a continuous policy needs a Box of floats for actions, but they are {space}.\n"
            f"  fix: use {others}"
        )
    if not (
        np.isfinite(space.low).all() and np.isfinite(space.high).all() and (space.low < space.high).all()
    ):
        raise UsageError(
            f"{spec.id}: the actions {space} have no finite bounds to squash a policy into.\n"
            "  fix: wrap the environment in gymnasium's RescaleAction or ClipAction, or use ppo"
        )
    return space


def from_unit(space: gym_spaces.Box, x: jax.Array) -> jax.Array:
    """Actions, from where they lie between their bounds: -1 is the lower, 1 the upper.

    >>> from_unit(gym_spaces.Box(0, 4, (2,)), jnp.array([-1.0, 0.5])).tolist()
    [0.0, 3.0]
    """
    low, half = _bounds(space)
    # Noise may lead past a bound, and so may rounding, which some simulators refuse.
    return jnp.clip(low + (x + 1) * half, space.low, space.high)


def to_unit(space: gym_spaces.Box, action: jax.Array) -> jax.Array:
    """Where actions lie between their bounds: the inverse of `from_unit`.

    >>> to_unit(gym_spaces.Box(0, 4, (2,)), jnp.array([0.0, 3.0])).tolist()
    [-1.0, 0.5]
    """
    low, half = _bounds(space)
    return (action - low) / half - 1


def perturb(
    space: gym_spaces.Box, action: jax.Array, noise: jax.Array, deviation: float, limit: float = math.inf
) -> jax.Array:
    """Actions with noise of a deviation and up to a limit, kept in their bounds.

    Both are shares of half the distance between the bounds, as where actions lie in [-1, 1]; the limit is
    that of target policy smoothing (Fujimoto et al., 2018).

    >>> perturb(gym_spaces.Box(0, 4, (3,)), jnp.array([2.0, 2.0, 3.5]), jnp.array([1.0, -9.0, 9.0]), 0.5, 1.0)
    Array([3., 0., 4.], dtype=float32)
    """
    return from_unit(space, to_unit(space, action) + jnp.clip(deviation * noise, -limit, limit))


def soft_log_std(x: jax.Array) -> jax.Array:
    """Log standard deviations in [-5, 2], from any numbers; smooth, so that the gradient never vanishes.

    >>> soft_log_std(jnp.array([-99.0, 0.0, 99.0])).tolist()
    [-5.0, -1.5, 2.0]
    """
    return LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (jnp.tanh(x) + 1)


def squashed_sample(
    space: gym_spaces.Box, mean: jax.Array, log_std: jax.Array, noise: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """An action from standard-normal noise, and the logarithm of its density; all [..., *space.shape].

    The action is an affine map of tanh of a normal variable, so its density is the normal's divided by the
    map's derivative (Haarnoja et al., 2018, appendix C).

    >>> space, zero = gym_spaces.Box(-2, 2, (1,)), jnp.zeros(1)
    >>> action, log_prob = squashed_sample(space, zero, zero, zero)
    >>> action.tolist(), jnp.exp(log_prob).round(4).item()
    ([0.0], 0.199...)
    """
    x = mean + jnp.exp(log_std) * noise
    normal = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(x)^2), in a form that stays exact where tanh has become 1.
    slope = 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))
    each = normal - slope - np.log(_bounds(space)[1])
    axes = tuple(range(-len(space.shape), 0))
    return from_unit(space, jnp.tanh(x)), jnp.sum(each, axis=axes)


def _bounds(space: gym_spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """The lower bound and half the width, as floats."""
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return low, (high - low) / 2
