"""Simulators that wait, each in its own time: act for whichever rows have come back.

A batch of simulators that wait is as slow as the slowest of them, in every step. In a loop that only acts and
steps, rows need not be at the same turn: keys depend on the turn and the environment, not on who is batched
with whom. So a row is given its next action once enough others have come back too (how many: patience.py),
and all of them meet when the loop is over. Every call acts for the same number of rows, filled up if fewer
are there: a product may round differently for another number, and what a run computes must not depend on who
came first.

Where waiting for all is the fastest, rows stay in step, and what Python does between two steps is done while
no simulator waits. There blocks of rows are slices of what is kept, not rows looked up one by one. By turns
in one process, 32 simulators of 0.5 to 1.5 ms on one core: a turn costs the acting thread 0.80 of the
processor time, 370 to 380 us, and takes 0.96 of the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np

from sherd.author.types import EnvState
from sherd.graph.ir import Ref, Scope, Value, is_ref, refs_in
from sherd.lower.parts import Clock, HostNode, Store, fill
from sherd.lower.patience import Patience
from sherd.lower.regions import roles_in
from sherd.lower.scopes import HostStack
from sherd.lower.unit_call import UnitCall, env_axes
from sherd.spaces import HostEnv, RowwiseEnv

# Of a small network a call costs about as much for 32 rows as for 8. Of a large one it does not, so that a
# few environments shall not pay for 32.
_MOST_ROWS, _STEP = 32, 8


def goes_by_rows(scope: Scope, env: HostEnv | None) -> bool:
    """Whether a loop does nothing but act, then step environments that wait."""
    if env is None or not env.spec.waits or env.num_envs < 2 or not isinstance(env, RowwiseEnv):
        return False
    roles = [roles_in(item) for item in scope.body]
    return len(roles) > 1 and roles[-1] == {"env"} and all(role == {"act"} for role in roles[:-1])


def rows_of_a_call(envs: int) -> int:
    """For how many rows every call acts.

    >>> [rows_of_a_call(envs) for envs in (2, 8, 20, 64)]
    [8, 8, 24, 32]
    """
    return min(_MOST_ROWS, math.ceil(envs / _STEP) * _STEP)


class HostRows:
    """Runs such a loop; `fits` says whether everything in it has its rows first.

    Between two calls Python must be quick: the threads that step wait for its lock meanwhile. So a turn and a
    row are one index into flat arrays, and trees are taken apart before the loop.
    """

    def __init__(self, scope: Scope, node: HostNode, values: dict[int, Value], rollouts: int) -> None:
        self._scope, self._node, self._driver = scope, node, node.driver
        self._envs = node.driver.env.num_envs
        self._state, self._action = node.node.inputs
        self._env_carry = [carry for carry in scope.carries if carry.inner == self._state.value]
        self._others = [carry for carry in scope.carries if carry.inner != self._state.value]
        stacked = [ref for stack in scope.stacks for ref in refs_in(stack.inner)]
        results = [carry.result for carry in self._others]
        wanted = {ref.value for ref in (*stacked, *results, *refs_in(self._action))}
        inner = {carry.inner for carry in scope.carries}
        self._call = UnitCall(list(scope.body[:-1]), wanted, inner, values, rows=1)
        size, sets = self._call.results.layout.size, rollouts + 1  # as many sets as the driver has
        self._words = [np.zeros((scope.trips * self._envs, size), np.int32) for _ in range(sets)]
        self._apart: list[dict[int, np.ndarray]] = [{} for _ in range(sets)]
        self._set = 0
        self._rows, self._patience = rows_of_a_call(self._envs), Patience(self._envs)
        self._last = np.zeros((self._rows, size), np.int32)
        self._leaves = self._leaves_of(self._last)
        self._fill = [np.arange(self._rows) % max(1, count) for count in range(self._rows + 1)]
        self._blocks = [(low, low + self._rows) for low in range(0, self._envs, self._rows)]
        self._in_blocks = self._envs % self._rows == 0
        turns = np.arange(scope.trips, dtype=np.int32)[:, None]
        self._same_turn = jax.device_put(list(np.broadcast_to(turns, (scope.trips, self._rows))))
        self._stacks = [HostStack(stack, scope.trips, rollouts, [node, self]) for stack in scope.stacks]
        self.fits = self._splits(values) and not any(stack.copied for stack in self._stacks)
        whole = self.fits and not self._call.results.apart
        self._picked = self._pick(self._leaves) if whole else None  # views of what every call is written to

    def _splits(self, values: dict[int, Value]) -> bool:
        """Whether what is carried, computed and acted on has its rows first."""
        if [carry.result for carry in self._env_carry] != [Ref(self._node.node.output, (("item", 0),))]:
            return False
        rows = [Ref(value) for value in self._call.outputs] + [Ref(carry.inner) for carry in self._others]
        if any(axis != 0 for ref in (*rows, *self._call.cuts) for axis in env_axes(values, ref)):
            return False
        # Episodes are added up after the loop, so that acting must not look at them.
        seen = EnvState((), True, True, False, False)
        states = [ref for ref in self._call.cuts if ref.value == self._state.value]
        if not all(ref.path and ref.pick(seen) for ref in states):
            return False
        computed = [carry.result for carry in self._others] + jax.tree.leaves(self._action, is_leaf=is_ref)
        return all(is_ref(leaf) and leaf.value in self._call.outputs for leaf in computed)

    def run(self, store: Store, clock: Clock) -> None:
        """All turns of all rows."""
        self._begin(store, clock)
        driver, envs, trips = self._driver, self._envs, self._scope.trips
        begun, enough = time.perf_counter(), self._patience.rows
        if enough == envs and self._in_blocks:
            self._run_in_step(clock.now)
        else:
            self._run_by_rows(clock.now, enough)
        self._patience.took(time.perf_counter() - begun)
        for turn in range(trips):
            driver.account(turn)
        for carry in self._env_carry:
            store[carry.outer] = jax.tree.map(lambda array: array[trips], driver.states)
        for carry in self._others:
            store[carry.outer] = self._carried[carry.inner]
        for stack in self._stacks:
            store[stack.outer] = stack.whole()

    def _run_by_rows(self, now: Any, enough: int) -> None:
        """Act for whichever rows have come back, once they are enough."""
        driver, envs, trips = self._driver, self._envs, self._scope.trips
        outcome, first = driver.stacked[1], driver.states.first.reshape(-1)
        terminated, truncated = outcome.terminated.reshape(-1), outcome.truncated.reshape(-1)
        turns, ready, left = np.zeros(envs, np.int32), np.arange(envs), envs
        while left:
            for low in range(0, len(ready), self._rows):
                rows = ready[low : low + self._rows]
                self._act(rows, turns[rows], now)
            back = np.array(self._env.finished(min(enough, left)))
            at = turns[back] * envs + back
            first[at + envs] = terminated[at] | truncated[at]
            turns[back] += 1
            ready = back[turns[back] < trips]
            left -= len(back) - len(ready)

    def _run_in_step(self, now: Any) -> None:
        """Act for all rows, wait for all of them, and again."""
        driver, env, envs = self._driver, self._env, self._envs
        outcome, first = driver.stacked[1], driver.states.first
        now, index = jax.device_put((now, [self._index[low:high] for low, high in self._blocks]))
        for turn, same in enumerate(self._same_turn):
            for (low, high), mine in zip(self._blocks, index):
                rows, at = slice(low, high), slice(turn * envs + low, turn * envs + high)
                words, apart = self._call.act(self._cut(rows, at), now, same, mine)
                action = self._keep(rows, at, words, apart, self._rows)
                env.start(range(low, high), action, [driver.outs[turn]] * self._rows)
            env.finished(envs)
            np.logical_or(outcome.terminated[turn], outcome.truncated[turn], out=first[turn + 1])

    @property
    def _env(self) -> RowwiseEnv:
        env: Any = self._driver.env  # see `goes_by_rows`
        return cast(RowwiseEnv, env)

    def _begin(self, store: Store, clock: Clock) -> None:
        """Find the arrays that this time is read from and written to."""
        driver = self._driver
        driver.begin()
        for carry in self._env_carry:
            driver.enter(fill(carry.initial, store))
        self._set = (self._set + 1) % len(self._words)
        self._call.begin(store, clock.seed)
        self._index = np.asarray(clock.env_index).reshape(self._envs, 1)
        self._carried = {c.inner: jax.tree.map(np.array, fill(c.initial, store)) for c in self._others}
        known = store | self._carried | {self._state.value: driver.states}
        self._sources = []
        for ref in self._call.cuts:
            changes = ref.value == self._state.value
            for leaf in jax.tree.leaves(ref.pick(known[ref.value])):
                shape = np.shape(leaf)[2 if changes else 1 :]
                self._sources.append((np.asarray(leaf).reshape(-1, 1, *shape), changes))
        kept = jax.tree.leaves(driver.stacked[1].action)
        self._actions = [array.reshape(-1, *array.shape[2:]) for array in kept]
        self._moved = [leaf for carry in self._others for leaf in jax.tree.leaves(self._carried[carry.inner])]

    def _act(self, rows: Any, turns: Any, now: Any) -> None:
        """Act for some rows, keep what was computed, and have them stepped."""
        at, filled = turns * self._envs + rows, self._fill[len(rows)]
        every = rows[filled]
        words, apart = self._call.act(self._cut(every, at[filled]), now, turns[filled], self._index[every])
        action = self._keep(rows, at, words, apart, len(rows))
        outs = self._driver.outs
        self._env.start(rows.tolist(), action, [outs[turn] for turn in turns.tolist()])

    def _cut(self, rows: Any, at: Any) -> list[Any]:
        """What a call is given of these rows, which are at these places of flat arrays."""
        return [array[at if changes else rows] for array, changes in self._sources]

    def _keep(self, rows: Any, at: Any, words: Any, apart: list[Any], count: int) -> Any:
        """Put what was computed for the first `count` rows of a call where it belongs; their actions."""
        self._last[...] = words
        self._words[self._set][at] = self._last[:count]
        action, moves = self._picked or self._pick(self._with_apart(at, apart, count))
        for old, leaf in zip(self._moved, moves):
            old[rows] = leaf[:count]
        if count < self._rows:
            action = jax.tree.map(lambda leaf: leaf[:count], action)
        for kept, leaf in zip(self._actions, jax.tree.leaves(action)):
            kept[at] = leaf
        return action

    def _pick(self, leaves: list[Any]) -> tuple[Any, list[Any]]:
        """Of the last call: actions, and what is carried, leaf by leaf. Both have all rows of a call."""
        pick = self._call.results.pick
        moves = [leaf for carry in self._others for leaf in jax.tree.leaves(pick(carry.result, leaves))]
        return jax.tree.map(lambda ref: pick(ref, leaves), self._action, is_leaf=is_ref), moves

    def _with_apart(self, at: Any, apart: list[Any], count: int) -> list[Any]:
        """The leaves of the last call with those that are not packed, which are kept here."""
        leaves, kept = list(self._leaves), self._apart[self._set]
        for number, array in zip(self._call.results.apart, apart):
            leaves[number] = np.asarray(array)[:, 0]
            if number not in kept:
                size = self._scope.trips * self._envs
                kept[number] = np.zeros((size, *leaves[number].shape[1:]), leaves[number].dtype)
            kept[number][at] = leaves[number][:count]
        return leaves

    def _leaves_of(self, words: Any) -> list[Any]:
        """The leaves in words of as many rows; None for what is not packed."""
        return [leaf if leaf is None else leaf[:, 0] for leaf in self._call.results.views(words)]

    def stacked(self, leaf: Any) -> Callable[[], Any] | None:
        """How to get a value that acting computed, stacked over all turns."""
        if not isinstance(leaf, Ref) or leaf.value not in self._call.outputs:
            return None

        def whole() -> Any:
            leaves = self._leaves_of(self._words[self._set])
            for number, array in self._apart[self._set].items():
                leaves[number] = array
            lead = (self._scope.trips, self._envs)
            picked = self._call.results.pick(leaf, leaves)
            return jax.tree.map(lambda array: array.reshape(lead + array.shape[1:]), picked)

        return whole
