"""Gymnasium's vectorised CartPole, with rows that reset in the step in which they end.

Gymnasium's own `CartPoleVectorEnv` resets a row one step late, from a generator that all rows share, so
a row's episodes would depend on who sits beside it. Here the start states come from a counter-based hash
of (seed, global environment index, episode). The dynamics are Gymnasium's arithmetic, operation by
operation, in float64, with every temporary preallocated; a test holds the two equal bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sherd.envs.host.seeding import stream_keys, uniforms
from sherd.errors import RunError
from sherd.spaces import EnvSpec, StepOut, Tree

ENTRY_POINT = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
# Start states are drawn for this many episodes of a row at once, since a NumPy call costs as much as a row.
_AHEAD = 16


class CartPoles:
    """A batch of CartPoles as a handful of NumPy calls, whatever its size."""

    def __init__(self, env_id: str, model: Any, seed: int, first_index: int = 0):
        self.num_envs = count = int(model.num_envs)
        self.spec = EnvSpec(env_id, model.single_observation_space, model.single_action_space, "host")
        self._model = model
        self._first_index = first_index
        self._keys = stream_keys(seed, first_index, count)
        self._episode = np.zeros(count, np.int64)
        self._starts = np.zeros((count, _AHEAD, 4))
        self._steps = np.zeros(count, np.int32)
        self._limits = np.array([[model.x_threshold], [model.theta_threshold_radians]])
        self._forces = np.array([-model.force_mag, model.force_mag])
        self._force, self._cos, self._sin, self._temp, self._spare = np.zeros((5, count))
        self._derivative = np.zeros((4, count))
        self._beyond = np.zeros((2, count), bool)
        self._size = np.zeros((2, count))
        self.set_state(np.zeros((4, count)))

    def set_state(self, state: np.ndarray) -> None:
        """Put the carts where `state` says: rows x, x_dot, theta, theta_dot in float64."""
        self._state = np.array(state, np.float64)
        # Views for the step, made once.
        self._theta, self._theta_dot = self._state[2], self._state[3]
        self._positions, self._speeds, self._observed = self._state[0::2], self._state[1::2], self._state.T
        self._moves, self._pushes = self._derivative[0::2], self._derivative[1::2]
        self._push, self._turn = self._derivative[1], self._derivative[3]

    def reset(self, obs: Tree) -> None:
        """Start every row's first episode."""
        self._episode[:] = 0
        self._start(np.arange(self.num_envs))
        np.copyto(obs, self._observed, casting="same_kind")

    def step(self, action: Tree, out: StepOut) -> None:
        """Push every cart, then start a new episode in the rows that ended."""
        self._integrate(action)
        np.abs(self._positions, out=self._size)
        np.greater(self._size, self._limits, out=self._beyond)
        terminated, truncated = out.terminated, out.truncated
        np.logical_or(self._beyond[0], self._beyond[1], out=terminated)
        self._steps += 1
        np.greater_equal(self._steps, self._model.max_episode_steps, out=truncated)
        if self._model._sutton_barto_reward:
            np.negative(terminated, out=out.reward, dtype=np.float32)
        else:
            out.reward.fill(1.0)
        np.copyto(out.next_obs, self._observed, casting="same_kind")
        rows = (terminated | truncated).nonzero()[0]
        if rows.size:
            self._start(rows)
        np.copyto(out.obs, self._observed, casting="same_kind")

    def _refused(self, action: np.ndarray) -> RunError:
        row = int(np.flatnonzero((action < 0) | (action > 1))[0])
        return RunError(
            f"{self.spec.id}: environment {self._first_index + row} was given the action {action[row]}, "
            "which lies outside Discrete(2)\n  fix: give env.step the action 0 or 1 for each environment"
        )

    def _integrate(self, action: np.ndarray) -> None:
        model, force, cos, sin, temp, spare = (
            self._model,
            self._force,
            self._cos,
            self._sin,
            self._temp,
            self._spare,
        )
        try:
            self._forces.take(action, out=force)
        except IndexError as error:
            raise self._refused(np.asarray(action)) from error
        np.cos(self._theta, out=cos)
        np.sin(self._theta, out=sin)
        # temp = (force + polemass_length * theta_dot ** 2 * sin) / total_mass
        np.square(self._theta_dot, out=temp)
        np.multiply(temp, model.polemass_length, out=temp)
        np.multiply(temp, sin, out=temp)
        np.add(temp, force, out=temp)
        np.divide(temp, model.total_mass, out=temp)
        # turn = (gravity * sin - cos * temp) / (length * (4 / 3 - masspole * cos ** 2 / total_mass))
        np.square(cos, out=spare)
        np.multiply(spare, model.masspole, out=spare)
        np.divide(spare, model.total_mass, out=spare)
        np.subtract(4.0 / 3.0, spare, out=spare)
        np.multiply(spare, model.length, out=spare)
        turn = self._turn
        np.multiply(cos, temp, out=force)
        np.multiply(sin, model.gravity, out=turn)
        np.subtract(turn, force, out=turn)
        np.divide(turn, spare, out=turn)
        # push = temp - polemass_length * turn * cos / total_mass
        np.multiply(turn, model.polemass_length, out=spare)
        np.multiply(spare, cos, out=spare)
        np.divide(spare, model.total_mass, out=spare)
        np.subtract(temp, spare, out=self._push)
        # Explicit Euler: positions move by the old speeds.
        np.multiply(self._speeds, model.tau, out=self._moves)
        np.multiply(self._pushes, model.tau, out=self._pushes)
        np.add(self._state, self._derivative, out=self._state)

    def _start(self, rows: np.ndarray) -> None:
        episode = self._episode[rows]
        place = episode % _AHEAD
        empty = rows[place == 0]
        if empty.size:
            self._draw(empty)
        self._observed[rows] = self._starts[rows, place]
        self._episode[rows] = episode + 1
        self._steps[rows] = 0

    def _draw(self, rows: np.ndarray) -> None:
        keys = np.repeat(self._keys[rows], _AHEAD)
        ahead = np.arange(_AHEAD, dtype=np.uint64)
        episodes = (self._episode[rows].astype(np.uint64)[:, None] + ahead).ravel()
        low, high = self._model.low, self._model.high
        drawn = low + (high - low) * uniforms(keys, episodes, 4)
        self._starts[rows] = drawn.T.reshape(len(rows), _AHEAD, 4)

    def close(self) -> None:
        """Nothing to free beyond memory."""
        self._model.close()
