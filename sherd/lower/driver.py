"""Drive host simulators: rollouts are written in place into preallocated arrays.

The simulator writes an observation once, into the row where the rollout keeps it, and acting reads that
row. Everything that is handed out per step is built beforehand, so that a step makes no Python objects.
Sets of arrays take turns, one more of them than there are rollouts in an iteration: what an iteration was
handed, and what it began with, does not change before it is over. Where rows run ahead there is a spare one.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from sherd.author.types import EnvState, Episode, Transition
from sherd.spaces import HostEnv, StepOut, tree_map, zeros

Stepped = tuple[EnvState, Transition, Episode]


def _allocate(env: HostEnv, sets: int, trips: int) -> Stepped:
    """All sets of arrays, leaves [set, turn, env, ...]; there is one more state than there are steps.

    Steps have a turn too many, so that one number says where a row is in all of these arrays.
    """
    spec, lead = env.spec, (sets, trips + 1, env.num_envs)
    obs, first = zeros(spec.observation, lead), np.zeros(lead, bool)
    state = EnvState((), obs, first, np.zeros(lead, np.float32), np.zeros(lead, np.int32))
    transition = Transition(
        obs=obs,
        action=zeros(spec.action, lead),
        reward=np.zeros(lead, np.float32),
        terminated=np.zeros(lead, bool),
        truncated=np.zeros(lead, bool),
        next_obs=zeros(spec.observation, lead),
        first=first,
        extra=(),
    )
    episode = Episode(np.zeros(lead, bool), np.zeros(lead, np.float32), np.zeros(lead, np.int32))
    return state, transition, episode


class _Buffers:
    """One set of arrays, and the views of it that each step hands out."""

    def __init__(self, every: Stepped, number: int) -> None:
        self.state, *steps = jax.tree.map(lambda a: a[number], every)
        trips = len(self.state.first) - 1
        self.transition, self.episode = jax.tree.map(lambda a: a[:trips], steps)
        self.before = jax.tree.map(lambda a: a[:trips], self.state)
        self.after = jax.tree.map(lambda a: a[1:], self.state)
        self.states = [jax.tree.map(lambda a, i=i: a[i], self.state) for i in range(trips + 1)]
        transitions = [jax.tree.map(lambda a, i=i: a[i], self.transition) for i in range(trips)]
        episodes = [jax.tree.map(lambda a, i=i: a[i], self.episode) for i in range(trips)]
        sums = self.state.episode_return
        self.sums = [
            list(a) for a in (sums[:-1], self.transition.reward, self.episode.episode_return, sums[1:])
        ]
        self.turns = np.arange(1, trips + 1, dtype=np.int32)[:, None]
        self.stepped: list[Stepped] = list(zip(self.states[1:], transitions, episodes))
        self.outs = [
            StepOut(after.obs, t.next_obs, t.reward, t.terminated, t.truncated)
            for after, t, _ in self.stepped
        ]


class Driver:
    """Executes one env node for every turn of the scope it stands in.

    `every` holds what all sets do, and `number` says which of them is filled.
    """

    def __init__(self, env: HostEnv, trips: int, rollouts: int = 1, spare: int = 0) -> None:
        self.env, self.sets = env, rollouts + 1 + spare
        self.every = _allocate(env, self.sets, trips)
        self._sets = [_Buffers(self.every, number) for number in range(self.sets)]
        self.number = 0
        self._current = self._sets[0]
        self._turn = 0

    def begin(self) -> None:
        """Enter the scope: from here on the next set of arrays is filled."""
        self.number = (self.number + 1) % self.sets
        self._current = self._sets[self.number]
        self._turn = 0

    def step(self, state: EnvState, action: Any) -> Stepped:
        """Step every environment; what comes back are views of the rollout."""
        turn, buffers = self._turn, self._current
        self.enter(state, turn)
        stepped = buffers.stepped[turn]
        transition = stepped[1]
        if isinstance(action, np.ndarray):
            np.copyto(transition.action, action)
        else:
            tree_map(np.copyto, transition.action, action)
        self.env.step(transition.action, buffers.outs[turn])
        self.account(turn)
        self._turn = turn + 1
        return stepped

    def enter(self, state: EnvState, turn: int = 0) -> None:
        """A turn begins with this state."""
        if state is not self._current.states[turn]:
            jax.tree.map(np.copyto, self._current.states[turn], state)

    def account(self, turn: int) -> None:
        """Add up the episodes after a step."""
        state, out = self._current.states[turn], self._current.outs[turn]
        after, _, episode = self._current.stepped[turn]
        np.logical_or(out.terminated, out.truncated, out=episode.ended)
        np.add(state.episode_return, out.reward, out=episode.episode_return)
        np.add(state.episode_length, 1, out=episode.episode_length)
        after.first[:] = episode.ended
        running = np.logical_not(episode.ended)
        np.multiply(episode.episode_return, running, out=after.episode_return)
        np.multiply(episode.episode_length, running, out=after.episode_length)

    def account_all(self) -> None:
        """The same after all turns: what `account` does turn by turn, in fewer operations."""
        state, out, episode = self._current.state, self._current.transition, self._current.episode
        np.logical_or(out.terminated, out.truncated, out=episode.ended)
        state.first[1:] = episode.ended
        running = np.logical_not(episode.ended)
        for before, reward, returned, after, goes_on in zip(*self._current.sums, running):
            np.add(before, reward, returned)  # turn by turn: a sum's last bit depends on the order
            np.multiply(returned, goes_on, after)
        # An episode is as long as turns have passed since it began, which was -length turns before the first.
        turns = self._current.turns
        began = np.where(episode.ended, turns, -state.episode_length[0])
        np.maximum.accumulate(began, axis=0, out=began)
        np.subtract(turns, began, out=state.episode_length[1:])
        episode.episode_length[0] = state.episode_length[0] + 1
        episode.episode_length[1:] = state.episode_length[1:-1] + 1

    @property
    def states(self) -> EnvState:
        """The states before and after all turns, stacked: one more than there are turns."""
        return self._current.state

    def outs_of(self, number: int) -> list[StepOut]:
        """Where each turn's step is written in a set of arrays."""
        return self._sets[number].outs

    @property
    def stacked(self) -> Stepped:
        """What the turns since `begin` handed out, stacked: no copy is made."""
        return self._current.after, self._current.transition, self._current.episode

    @property
    def entered(self) -> EnvState:
        """The states that those turns began with, stacked."""
        return self._current.before

    def start(self) -> EnvState:
        """Reset the simulators."""
        state = self._sets[0].states[0]
        self.env.reset(state.obs)
        state.first[:] = True
        return jax.tree.map(np.copy, state)
