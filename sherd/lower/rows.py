"""Simulators that wait, each in its own time: act for whichever rows have come back.

A batch of simulators that wait is as slow as the slowest of them, in every step. In a loop that only acts and
steps, rows need not be at the same turn: keys depend on the turn and the environment, not on who is batched
with whom. So a row is given its next action once enough others have come back too (how many: patience.py),
and all of them meet when the loop is over, unless they may run ahead (ahead.py). Every call acts for the same
number of rows, whether so many are there or not: a product may round differently for another number, and what
a run computes must not depend on who came first.

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
from sherd.lower.ahead import turns_ahead
from sherd.lower.parts import Clock, HostNode, Store, fill
from sherd.lower.patience import Patience
from sherd.lower.regions import roles_in
from sherd.lower.scopes import HostStack
from sherd.lower.unit_call import Places, UnitCall, env_axes
from sherd.spaces import HostEnv, RowwiseEnv, StepOut

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
    row are one index into flat arrays, and trees are taken apart before the loop. Turns count on beyond the
    rollout where rows may run ahead; whoever allows it is told by `went_ahead`, once in every rollout whose
    rows have begun the next one.
    """

    def __init__(
        self,
        scope: Scope,
        node: HostNode,
        values: dict[int, Value],
        rollouts: int,
        went_ahead: Callable[[], None] | None = None,
    ) -> None:
        self._scope, self._node, self._driver = scope, node, node.driver
        self._envs, self._went_ahead = node.driver.env.num_envs, went_ahead
        self._state, self._action = node.node.inputs
        self._env_carry = [carry for carry in scope.carries if carry.inner == self._state.value]
        self._others = [carry for carry in scope.carries if carry.inner != self._state.value]
        stacked = [ref for stack in scope.stacks for ref in refs_in(stack.inner)]
        results = [carry.result for carry in self._others]
        wanted = {ref.value for ref in (*stacked, *results, *refs_in(self._action))}
        inner = {carry.inner for carry in scope.carries}
        self._call = UnitCall(list(scope.body[:-1]), wanted, inner, values, rows=1)
        size = self._call.results.layout.size
        self._steps = scope.trips * self._envs  # of a rollout
        self._words = np.zeros((self._driver.sets * self._steps, size), np.int32)
        self._apart: dict[int, np.ndarray] = {}
        self._rows, self._patience = rows_of_a_call(self._envs), Patience(self._envs)
        lows = range(0, self._envs, self._rows)
        self._blocks = [] if self._envs % self._rows else [(low, low + self._rows) for low in lows]
        self._last = np.zeros((self._rows, size), np.int32)
        self._leaves = self._leaves_of(self._last)
        self._most = scope.trips + (turns_ahead(scope.trips) if went_ahead else 0)
        self._tables = [self._table_of(number) for number in range(self._driver.sets)]
        # Where every row is: its turn, and whether somebody steps it. The others are to be acted for.
        self._turns, self._ready = np.zeros(self._envs, np.int32), np.arange(self._envs)
        self._carried: dict[int, Any] = {}
        self._places: list[Places] = []  # made when the loop begins: clocks may have more numbers
        self._stacks = [HostStack(stack, scope.trips, rollouts, [node, self]) for stack in scope.stacks]
        self.fits = self._splits(values) and not any(stack.copied for stack in self._stacks)
        whole = self.fits and not self._call.results.apart
        self._picked = self._pick(self._leaves) if whole else None  # views of what every call is written to

    def _table_of(self, number: int) -> tuple[np.ndarray, list[StepOut]]:
        """By turn, if a set of arrays is the present one: where states lie and steps, and where to write."""
        trips, envs, driver = self._scope.trips, self._envs, self._driver
        after = (number + 1) % driver.sets
        states = [number * (trips + 1) + turn for turn in range(trips + 1)]
        states += [after * (trips + 1) + turn for turn in range(1, self._most - trips + 1)]
        steps = [number * trips + turn for turn in range(trips)]
        steps += [after * trips + turn for turn in range(self._most - trips + 1)]
        outs = driver.outs_of(number) + driver.outs_of(after)[: self._most - trips]
        return np.array([states, steps]).T * envs, outs

    def _splits(self, values: dict[int, Value]) -> bool:
        """Whether what is carried, computed and acted on has its rows first."""
        if [carry.result for carry in self._env_carry] != [Ref(self._node.node.output, (("item", 0),))]:
            return False
        if self._scope.index in self._call.same:  # there is no one turn that all rows are at
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
        """All turns of all rows, and, if rows may run ahead, some of the next."""
        self._begin(store, clock)
        driver, envs, trips = self._driver, self._envs, self._scope.trips
        begun, enough, before = time.perf_counter(), self._patience.rows, int(self._turns.sum())
        together = len(self._ready) == envs and not self._turns.any()
        if enough == envs and together and self._blocks:
            self._run_in_step()
        else:
            self._run_by_rows(enough, trips if enough == envs else self._most)
        made = int(self._turns.sum()) - before
        self._patience.took((time.perf_counter() - begun) * self._steps / made)
        self._turns -= trips
        if self._went_ahead and len(self._ready) + self._turns.any() != envs:
            self._went_ahead()
        for turn in range(trips):
            driver.account(turn)
        for carry in self._env_carry:
            store[carry.outer] = jax.tree.map(lambda array: array[trips], driver.states)
        for carry in self._others:
            store[carry.outer] = self._met[carry.inner]
        for stack in self._stacks:
            store[stack.outer] = stack.whole()

    def _run_by_rows(self, enough: int, limit: int) -> None:
        """Act for whichever rows have come back, once they are enough, until all are through this rollout."""
        driver, envs, trips, turns = self._driver, self._envs, self._scope.trips, self._turns
        outcome, first = driver.every[1], driver.every[0].first.reshape(-1)
        terminated, truncated = outcome.terminated.reshape(-1), outcome.truncated.reshape(-1)
        ready, parked, left = self._ready, self._ready[:0], int((turns < trips).sum())
        while True:
            free = turns[ready] < limit
            if not free.all():
                parked, ready = np.concatenate([parked, ready[~free]]), ready[free]
            for low in range(0, len(ready), self._rows):
                self._act(ready[low : low + self._rows])
            if not left:  # those that came back with the last one have begun the next rollout
                break
            ready = np.array(self._env.finished(min(enough, envs - len(parked))))
            steps = self._table[turns[ready], 1] + ready
            turns[ready] += 1
            now = turns[ready]
            first[self._table[now, 0] + ready] = terminated[steps] | truncated[steps]
            left -= self._meet(ready[now == trips])
        self._ready = parked

    def _meet(self, rows: np.ndarray) -> int:
        """How many rows these are, which have come to the end of the rollout; what they carry there."""
        if len(rows):
            for carried, met in self._at_the_end:
                met[rows] = carried[rows]
        return len(rows)

    def _run_in_step(self) -> None:
        """Act for all rows, wait for all of them, and again."""
        driver, env, envs, trips = self._driver, self._env, self._envs, self._scope.trips
        outcome, first, outs = driver.stacked[1], driver.states.first, self._outs
        for places, (low, high) in zip(self._places[1:], self._blocks):
            places.index[...] = self._index[low:high]
        for turn in range(trips):
            state, step, *now = self._table[turn].tolist()
            for places, (low, high) in zip(self._places[1:], self._blocks):
                at, places.clock[...] = slice(state + low, state + high), now
                for place, (array, changes) in zip(places.cuts, self._sources):
                    place[...] = array[at if changes else slice(low, high)]
                words, apart = self._call.act(places)
                at = slice(step + low, step + high)
                action = self._keep(slice(low, high), at, words, apart, self._rows)
                env.start(range(low, high), action, [outs[turn]] * self._rows)
            env.finished(envs)
            np.logical_or(outcome.terminated[turn], outcome.truncated[turn], out=first[turn + 1])
        self._turns += trips
        self._meet(np.arange(envs))

    @property
    def _env(self) -> RowwiseEnv:
        env: Any = self._driver.env  # see `goes_by_rows`
        return cast(RowwiseEnv, env)

    def _begin(self, store: Store, clock: Clock) -> None:
        """Find the arrays that this time is read from and written to."""
        driver, trips, envs = self._driver, self._scope.trips, self._envs
        driver.begin()
        for carry in self._env_carry:
            driver.enter(fill(carry.initial, store))
        self._call.begin(store, clock.seed)
        self._index = np.asarray(clock.env_index).reshape(envs, 1)
        table, self._outs = self._tables[driver.number]
        clocks = np.zeros((len(table), len(clock.now) + 1), np.int32)
        clocks[:, :-1], clocks[:, -1] = clock.now, np.arange(len(table)) % trips
        clocks[trips:, 0] += 1  # rows that are ahead are in the next iteration
        self._table = np.concatenate([table, clocks], axis=1)
        if not self._places:
            count = 1 + len(self._blocks)  # one for any rows, and one for each block of those in step
            self._places = [self._call.places(self._rows, clocks.shape[1]) for _ in range(count)]
            self._blank = True
        if not (self._went_ahead and self._carried):  # else each row goes on with what it has
            self._carried = {c.inner: jax.tree.map(np.array, fill(c.initial, store)) for c in self._others}
        self._met = jax.tree.map(np.empty_like, self._carried)
        self._at_the_end = list(zip(jax.tree.leaves(self._carried), jax.tree.leaves(self._met)))
        self._moved = [leaf for carry in self._others for leaf in jax.tree.leaves(self._carried[carry.inner])]
        known = store | self._carried | {self._state.value: driver.every[0]}
        self._sources = []
        for ref in self._call.cuts:
            changes = ref.value == self._state.value
            for leaf in jax.tree.leaves(ref.pick(known[ref.value])):
                shape = np.shape(leaf)[3 if changes else 1 :]
                self._sources.append((np.asarray(leaf).reshape(-1, 1, *shape), changes))
        kept = jax.tree.leaves(driver.every[1].action)
        self._actions = [array.reshape(-1, *array.shape[3:]) for array in kept]

    def _act(self, rows: np.ndarray) -> None:
        """Act for some rows, keep what was computed, and have them stepped."""
        places, count, turns = self._places[0], len(rows), self._turns[rows]
        table = self._table[turns]
        at = table[:, 0] + rows
        for place, (array, changes) in zip(places.cuts, self._sources):
            place[:count] = array[at if changes else rows]
        places.index[:count], places.clock[:count] = self._index[rows], table[:, 2:]
        if self._blank:  # nobody's row either holds numbers that may come, now or from another time
            self._blank = False
            for array in (places.words, *places.wide):
                array[count:] = array[0]
        words, apart = self._call.act(places)
        action = self._keep(rows, table[:, 1] + rows, words, apart, count)
        outs = self._outs
        self._env.start(rows.tolist(), action, [outs[turn] for turn in turns.tolist()])

    def _keep(self, rows: Any, at: Any, words: Any, apart: list[Any], count: int) -> Any:
        """Put what was computed for the first `count` rows of a call where it belongs; their actions."""
        self._last[...] = words
        self._words[at] = self._last[:count]
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
        leaves, kept = list(self._leaves), self._apart
        for number, array in zip(self._call.results.apart, apart):
            leaves[number] = np.asarray(array)[:, 0]
            if number not in kept:
                kept[number] = np.zeros((len(self._words), *leaves[number].shape[1:]), leaves[number].dtype)
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
            low = self._driver.number * self._steps
            leaves = self._leaves_of(self._words[low : low + self._steps])
            for number, array in self._apart.items():
                leaves[number] = array[low : low + self._steps]
            lead = (self._scope.trips, self._envs)
            picked = self._call.results.pick(leaf, leaves)
            return jax.tree.map(lambda array: array.reshape(lead + array.shape[1:]), picked)

        return whole
