"""Gymnasium's classic control tasks in JAX: the same step, reward, end and start, in float32.

Each environment's state is a `State`; its `physics` is the vector that Gymnasium keeps in
`env.unwrapped.state`, so any situation can be set up by writing `State(physics, t)`.

>>> env = CartPole()
>>> state = State(jnp.array([0.0, 0.0, 0.3, 0.0]), jnp.int32(499))
>>> state, obs, reward, terminated, truncated = env.step(None, state, 1)
>>> float(reward), bool(terminated), bool(truncated), int(state.t)
(1.0, True, True, 500)
"""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.spaces import EnvSpec, Space


class State(NamedTuple):
    """Where an episode is: the physical state vector and the number of steps taken."""

    physics: jax.Array
    t: jax.Array


Advance = tuple[jax.Array, Any, Any]


class Classic(abc.ABC):
    """What the four tasks share: the clock, the time limit and the assembly of a step."""

    spec: EnvSpec
    time_limit: int

    def reset(self, key: Any) -> tuple[State, jax.Array]:
        """Start an episode: (state, observation)."""
        physics = self._start(key)
        return State(physics, jnp.int32(0)), self._observe(physics)

    def step(self, key: Any, state: State, action: Any) -> tuple[State, jax.Array, Any, Any, Any]:
        """One step: (state, observation, reward, terminated, truncated); the key is not used."""
        del key
        physics, reward, terminated = self._advance(state.physics, action)
        t = state.t + 1
        reward, terminated = jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool)
        return State(physics, t), self._observe(physics), reward, terminated, t >= self.time_limit

    def _observe(self, physics: jax.Array) -> jax.Array:
        """What the policy sees; the physical state itself unless a task says otherwise."""
        return physics.astype(jnp.float32)

    @abc.abstractmethod
    def _start(self, key: Any) -> jax.Array:
        """A physical state drawn from the task's starting distribution."""

    @abc.abstractmethod
    def _advance(self, physics: jax.Array, action: Any) -> Advance:
        """The laws of motion: (next physical state, reward, terminated)."""


class CartPole(Classic):
    """Balance a pole on a cart by pushing left (0) or right (1); physics = (x, x', angle, angle')."""

    time_limit = 500
    _max_position = 2.4
    _max_angle = 12 * 2 * math.pi / 360

    def __init__(self) -> None:
        # Twice the failing values, so that the observation that ends an episode is inside the space.
        high = np.array([2 * self._max_position, np.inf, 2 * self._max_angle, np.inf], np.float32)
        self.spec = _spec("graph/CartPole-v1", high, gym_spaces.Discrete(2))

    def _start(self, key: Any) -> jax.Array:
        return jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05)

    def _advance(self, physics: jax.Array, action: Any) -> Advance:
        x, x_dot, theta, theta_dot = physics
        cart_and_pole, pole, half_length, tau = 1.1, 0.1, 0.5, 0.02
        force = jnp.where(action == 1, 10.0, -10.0)
        sin, cos = jnp.sin(theta), jnp.cos(theta)
        push = (force + pole * half_length * theta_dot**2 * sin) / cart_and_pole
        inertia = half_length * (4.0 / 3.0 - pole * cos**2 / cart_and_pole)
        theta_acc = (9.8 * sin - cos * push) / inertia
        x_acc = push - pole * half_length * theta_acc * cos / cart_and_pole
        x, x_dot = x + tau * x_dot, x_dot + tau * x_acc
        theta, theta_dot = theta + tau * theta_dot, theta_dot + tau * theta_acc
        terminated = (jnp.abs(x) > self._max_position) | (jnp.abs(theta) > self._max_angle)
        return jnp.stack([x, x_dot, theta, theta_dot]), 1.0, terminated


class MountainCar(Classic):
    """Drive out of a valley with an engine too weak to climb; physics = (position, velocity)."""

    time_limit = 200

    def __init__(self) -> None:
        low, high = np.array([[-1.2, -0.07], [0.6, 0.07]], np.float32)
        observation = gym_spaces.Box(low, high, dtype=np.float32)
        self.spec = EnvSpec("graph/MountainCar-v0", observation, gym_spaces.Discrete(3), "graph")

    def _start(self, key: Any) -> jax.Array:
        return jnp.stack([jax.random.uniform(key, minval=-0.6, maxval=-0.4), jnp.float32(0)])

    def _advance(self, physics: jax.Array, action: Any) -> Advance:
        position, velocity = physics
        velocity = velocity + (action - 1) * 0.001 - jnp.cos(3 * position) * 0.0025
        velocity = jnp.clip(velocity, -0.07, 0.07)
        position = jnp.clip(position + velocity, -1.2, 0.6)
        # The left wall is inelastic.
        velocity = jnp.where((position <= -1.2) & (velocity < 0), 0.0, velocity)
        terminated = (position >= 0.5) & (velocity >= 0)
        return jnp.stack([position, velocity]), -1.0, terminated


class Pendulum(Classic):
    """Swing a pendulum up and hold it with a bounded torque; physics = (angle, angular velocity).

    As in Gymnasium, the angle is not wrapped, and the cost is that of the state before the step.
    """

    time_limit = 200

    def __init__(self) -> None:
        torque = gym_spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.spec = _spec("graph/Pendulum-v1", np.array([1.0, 1.0, 8.0], np.float32), torque)

    def _start(self, key: Any) -> jax.Array:
        return jax.random.uniform(key, (2,), minval=-1.0) * jnp.array([math.pi, 1.0], jnp.float32)

    def _advance(self, physics: jax.Array, action: Any) -> Advance:
        theta, velocity = physics
        torque = jnp.clip(action[0], -2.0, 2.0)
        cost = _wrapped(theta) ** 2 + 0.1 * velocity**2 + 0.001 * torque**2
        velocity = jnp.clip(velocity + (15.0 * jnp.sin(theta) + 3.0 * torque) * 0.05, -8.0, 8.0)
        return jnp.stack([theta + velocity * 0.05, velocity]), -cost, False

    def _observe(self, physics: jax.Array) -> jax.Array:
        theta, velocity = physics
        return jnp.stack([jnp.cos(theta), jnp.sin(theta), velocity]).astype(jnp.float32)


class Acrobot(Classic):
    """Swing the tip of a double pendulum above a bar; physics = (angle 1, angle 2 and their speeds)."""

    time_limit = 500
    _max_speed = (4 * math.pi, 9 * math.pi)

    def __init__(self) -> None:
        high = np.array([1.0, 1.0, 1.0, 1.0, *self._max_speed], np.float32)
        self.spec = _spec("graph/Acrobot-v1", high, gym_spaces.Discrete(3))

    def _start(self, key: Any) -> jax.Array:
        return jax.random.uniform(key, (4,), minval=-0.1, maxval=0.1)

    def _advance(self, physics: jax.Array, action: Any) -> Advance:
        torque = action - 1.0
        # One Runge-Kutta step of fourth order.
        dt = 0.2
        k1 = _acrobot_motion(physics, torque)
        k2 = _acrobot_motion(physics + dt / 2 * k1, torque)
        k3 = _acrobot_motion(physics + dt / 2 * k2, torque)
        k4 = _acrobot_motion(physics + dt * k3, torque)
        first, second, speed1, speed2 = physics + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        first, second = _wrapped(first), _wrapped(second)
        speed1 = jnp.clip(speed1, -self._max_speed[0], self._max_speed[0])
        speed2 = jnp.clip(speed2, -self._max_speed[1], self._max_speed[1])
        terminated = -jnp.cos(first) - jnp.cos(second + first) > 1.0
        return jnp.stack([first, second, speed1, speed2]), jnp.where(terminated, 0.0, -1.0), terminated

    def _observe(self, physics: jax.Array) -> jax.Array:
        first, second, speed1, speed2 = physics
        angles = [jnp.cos(first), jnp.sin(first), jnp.cos(second), jnp.sin(second)]
        return jnp.stack([*angles, speed1, speed2]).astype(jnp.float32)


def _acrobot_motion(physics: jax.Array, torque: Any) -> jax.Array:
    """The time derivative of the state, for links of mass, length and moment of inertia 1."""
    theta1, theta2, speed1, speed2 = physics
    gravity = 9.8
    sin2, cos2 = jnp.sin(theta2), jnp.cos(theta2)
    d1, d2 = 3.5 + cos2, 1.25 + 0.5 * cos2
    phi2 = 0.5 * gravity * jnp.sin(theta1 + theta2)
    phi1 = -(0.5 * speed2 + speed1) * speed2 * sin2 + 1.5 * gravity * jnp.sin(theta1) + phi2
    acc2 = (torque + d2 / d1 * phi1 - 0.5 * speed1**2 * sin2 - phi2) / (1.25 - d2**2 / d1)
    acc1 = -(d2 * acc2 + phi1) / d1
    return jnp.stack([speed1, speed2, acc1, acc2])


def _wrapped(angle: jax.Array) -> jax.Array:
    """The angle moved into [-pi, pi] by whole turns."""
    return angle - 2 * math.pi * jnp.round(angle / (2 * math.pi))


def _spec(env_id: str, high: np.ndarray, action: Space) -> EnvSpec:
    """A spec whose observations lie between -high and high."""
    return EnvSpec(env_id, gym_spaces.Box(-high, high, dtype=np.float32), action, "graph")
