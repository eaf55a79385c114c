"""Gymnasium's HalfCheetah as a batch: its own models, without Gymnasium's Python around every step.

A third of the time of `HalfCheetahEnv.step` is Python: checks, dictionaries and temporaries for every row.
Here MuJoCo is called row by row and everything else is done for the batch at once, with the same arithmetic:
a test holds the two equal bit for bit. Forces that no observation shows are not computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sherd.envs.host.faults import env_failed
from sherd.envs.host.gymnasium import EnvFactory, LoopEnv
from sherd.envs.host.mujoco import physics
from sherd.spaces import StepOut, Tree

ENTRY_POINT = "gymnasium.envs.mujoco.half_cheetah_v5:HalfCheetahEnv"


class Cheetahs(LoopEnv):
    """A batch of half cheetahs; Gymnasium's environments make and reset them."""

    def __init__(self, env_id: str, factory: EnvFactory, num_envs: int, seed: int, first_index: int = 0):
        super().__init__(env_id, factory, num_envs, seed, first_index)
        bodies: list[Any] = [env.unwrapped for env in self._envs]
        model = bodies[0]
        self._mj_step = physics()
        self._frames, self._seconds = model.frame_skip, model.dt
        self._weights = model._forward_reward_weight, model._ctrl_cost_weight
        self._skipped = int(model._exclude_current_positions_from_observation)
        self._limit = self._envs[0].spec.max_episode_steps or np.iinfo(np.int64).max  # type: ignore[union-attr]
        self._rows = [(body.data.ctrl, body.model, body.data) for body in bodies]
        # MuJoCo keeps a body's numbers where they are, so that these stay views of the current state.
        self._state = [(body.data.qpos, body.data.qvel) for body in bodies]
        width = model.model.nq - self._skipped
        self._shown = slice(self._skipped, None), slice(0, width), slice(width, None)
        self._positions = np.zeros((num_envs, model.model.nq))
        self._velocities = np.zeros((num_envs, model.model.nv))
        self._before = np.zeros(num_envs)
        self._made = np.zeros(num_envs, np.int64)

    def reset(self, obs: Tree) -> None:
        """Start every row's first episode from its own seed."""
        super().reset(obs)
        self._made[:] = 0
        self._look()

    def step(self, action: Tree, out: StepOut) -> None:
        """Step every row, then reset those whose episode is over."""
        np.copyto(self._before, self._positions[:, 0])
        mj_step, frames, row = self._mj_step, self._frames, 0
        try:
            for row, (control, model, data) in enumerate(self._rows):
                control[:] = action[row]
                mj_step(model, data, frames)
        except Exception as error:
            raise env_failed(self._id, self._first_index + row, "step", error) from error
        self._look()
        self._show(out.next_obs)
        forward, cost = self._weights
        speed = (self._positions[:, 0] - self._before) / self._seconds
        out.reward[:] = forward * speed - cost * np.sum(np.square(action), axis=1)
        out.terminated[:] = False
        self._made += 1
        np.greater_equal(self._made, self._limit, out=out.truncated)
        np.copyto(out.obs, out.next_obs)
        for ended in out.truncated.nonzero()[0]:
            self._start(int(ended), out.obs)

    def _look(self) -> None:
        for row, (position, velocity) in enumerate(self._state):
            self._positions[row], self._velocities[row] = position, velocity

    def _show(self, obs: Tree) -> None:
        shown, position, velocity = self._shown
        obs[:, position] = self._positions[:, shown]
        obs[:, velocity] = self._velocities

    def _start(self, row: int, obs: Tree) -> None:
        try:
            obs[row] = self._envs[row].reset()[0]
        except (Exception, SystemExit) as error:
            raise env_failed(self._id, self._first_index + row, "reset", error) from error
        self._made[row] = 0
        self._positions[row] = self._state[row][0]
