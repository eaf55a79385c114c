"""Simulators that wait, each in its own time: act for whichever rows have come back.

A batch of simulators that wait is as slow as the slowest of them, in every step. In a loop that only acts and
steps, rows need not be at the same turn: keys depend on the turn and the environment, not on who is batched
with whom. So a row is given its next action once enough others have come back too (how many: patience.py),
and all of them meet when the loop is over, unless they may run ahead (ahead.py). Where they may not, every
call acts for the same number of rows, whether so many are there or not: a product may round differently for
another number, and what such a run computes must not depend on who came first.
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
from sherd.lower.row_call import RowCall
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


def sizes_of_calls(envs: int, fixed: bool) -> list[int]:
    """For how many rows calls act. One number, if what is computed must not depend on who came first.

    >>> [sizes_of_calls(envs, fixed=True) for envs in (2, 8, 20, 64)], sizes_of_calls(64, fixed=False)
    ([[8], [8], [24], [32]], [8, 32])
    """
    most = min(_MOST_ROWS, math.ceil(envs / _STEP) * _STEP)
    return [most] if fixed else sorted({_STEP, most})


class HostRows:
    """Runs such a loop; `fits` says whether everything in it has its rows first.

    Turns count on over all sets of the driver's arrays; a turn and a row are one place in them (row_call.py).
    A row that comes to the end of the rollout goes on at the first turn of the next set, if it may run ahead.
    Whoever allows it is told by `went_ahead`, once in every rollout whose rows have begun the next one.
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
        self._unit = UnitCall(
            list(scope.body[:-1]), wanted, {carry.inner for carry in scope.carries}, values, rows=1
        )
        self._a_set = scope.trips + 1  # turns of a set of arrays
        turns = self._driver.sets * self._a_set
        outs = [self._driver.outs_of(number) for number in range(self._driver.sets)]
        # By place. Nobody steps at the last turn.
        self._outs = [out for one in outs for out in (*one, one[-1]) for _ in range(self._envs)]
        self._states, self._outcome, _ = jax.tree.map(_flat, self._driver.every)
        self._seen = [*jax.tree.leaves(self._states.obs), self._states.first]
        sizes = sizes_of_calls(self._envs, fixed=went_ahead is None)
        self._call = RowCall(self._unit, sizes, turns * self._envs, self._action, results)
        self._ahead = turns_ahead(scope.trips) if went_ahead else 0
        self._patience = Patience(self._envs)
        # Where every row is, and those among them that nobody steps: they wait for the next loop. Lists,
        # because a few rows are sooner looked up one by one than by an operation on arrays.
        self._at, self._parked = self._starts(self._a_set), list(range(self._envs))
        self._carried: dict[int, Any] = {}
        self._views: dict[int, dict[int, Any]] = {}  # by turn and tree
        self._tails = np.zeros((turns, self._envs, 0), np.int32)
        self._stacks = [HostStack(stack, scope.trips, rollouts, [node, self]) for stack in scope.stacks]
        self.fits = self._splits(values) and not any(stack.copied for stack in self._stacks)

    def _splits(self, values: dict[int, Value]) -> bool:
        """Whether what is carried, computed and acted on has its rows first."""
        if [carry.result for carry in self._env_carry] != [Ref(self._node.node.output, (("item", 0),))]:
            return False
        if self._scope.index in self._unit.same:  # there is no one turn that all rows are at
            return False
        rows = [Ref(value) for value in self._unit.outputs] + [Ref(carry.inner) for carry in self._others]
        if any(axis != 0 for ref in (*rows, *self._unit.cuts) for axis in env_axes(values, ref)):
            return False
        # Episodes are added up after the loop, so that acting must not look at them.
        seen = EnvState((), True, True, False, False)
        states = [ref for ref in self._unit.cuts if ref.value == self._state.value]
        if not all(ref.path and ref.pick(seen) for ref in states):
            return False
        computed = [carry.result for carry in self._others] + jax.tree.leaves(self._action, is_leaf=is_ref)
        return all(is_ref(leaf) and leaf.value in self._unit.outputs for leaf in computed)

    def run(self, store: Store, clock: Clock) -> None:
        """All turns of all rows, and, if rows may run ahead, some of the next."""
        self.go_on()
        self._begin(store, clock)
        driver, envs, trips = self._driver, self._envs, self._scope.trips
        begun, enough = time.perf_counter(), self._patience.rows
        ahead = 0 if enough == envs else self._ahead
        made = self._act_and_step(enough, ahead)
        self._patience.took((time.perf_counter() - begun) * trips * envs / made)
        if self._went_ahead and ahead:
            self._went_ahead()
        kept = self._kept(self._action)
        jax.tree.map(np.copyto, driver.stacked[1].action, kept)
        self.go_on()
        driver.account_all()
        self.go_on()
        for carry in self._env_carry:
            store[carry.outer] = jax.tree.map(lambda array: array[trips], driver.states)
        for carry in self._others:
            store[carry.outer] = self._met[carry.inner]
        for stack in self._stacks:
            store[stack.outer] = stack.whole()

    def _act_and_step(self, enough: int, ahead: int) -> int:
        """Act for whichever rows have come back, once they are enough; how many steps that were.

        It is over when all rows have come to the end; they may be so many turns ahead by then.
        """
        left, made, finished = self._envs, 0, self._env.finished
        self._end = (self._first + self._scope.trips) * self._envs
        self._stop = (self._next + ahead) * self._envs
        ready, self._parked = self._parked, []
        while True:
            self._act_for(ready)
            if not left:  # those that came back with the last one have begun the next rollout
                return made
            back = finished(min(enough, self._envs - len(self._parked)))
            made += len(back)
            ready, ended = self._came_back(back)
            left -= ended

    def go_on(self) -> None:
        """Between two loops: act for the rows that are ahead and have come back meanwhile.

        They need not wait until a rollout is summed up and sent. Measured: 1.01 times as many steps.
        """
        if self._went_ahead and (back := self._env.finished(0)):
            self._act_for(self._came_back(back)[0])

    def _act_for(self, rows: list[int]) -> None:
        """Act for rows, and have them stepped."""
        at, outs, most = self._at, self._outs, self._call.rows
        while rows:
            some, rows = rows[:most], rows[most:]
            places = [at[row] for row in some]
            action, moves = self._call.act(some, places)
            for old, leaf in zip(self._moved, moves):
                old[some] = leaf
            self._env.start(some, action, [outs[place] for place in places])

    def _came_back(self, rows: list[int]) -> tuple[list[int], int]:
        """Rows have been stepped: those that go on, and how many of them have come to the end."""
        at, envs, end, stop, special = self._at, self._envs, self._end, self._stop, False
        for row in rows:
            at[row] = place = at[row] + envs
            special |= end <= place < end + envs or stop <= place < stop + envs
        if self._sees_first:
            self._note_first([at[row] for row in rows])
        if not special:
            return rows, 0
        ended = [row for row in rows if end <= at[row] < end + envs]
        self._meet(ended)
        self._parked += [row for row in rows if stop <= at[row] < stop + envs]
        return [row for row in rows if not stop <= at[row] < stop + envs], len(ended)

    def _note_first(self, places: list[int]) -> None:
        """Whether an episode begins at these places."""
        now = np.array(places)
        before = now - self._envs
        self._states.first[now] = self._outcome.terminated[before] | self._outcome.truncated[before]

    def _meet(self, rows: list[int]) -> None:
        """Rows have come to the end: what they carry there, where they go on."""
        for carried, met in self._at_the_end:
            met[rows] = carried[rows]
        for row in rows:
            before, now = self._at[row], self._next * self._envs + row
            self._at[row] = now
            for array in self._seen if self._went_ahead else ():
                array[now] = array[before]

    def _starts(self, turn: int) -> list[int]:
        """The places of all rows at a turn."""
        return list(range(turn * self._envs, (turn + 1) * self._envs))

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
        self._first = driver.number * self._a_set
        self._next = (driver.number + 1) % driver.sets * self._a_set
        self._tell_time(clock)
        if not (self._went_ahead and self._carried):  # else each row goes on with what it has
            self._carried = {c.inner: jax.tree.map(np.array, fill(c.initial, store)) for c in self._others}
        self._met = jax.tree.map(np.empty_like, self._carried)
        self._at_the_end = list(zip(jax.tree.leaves(self._carried), jax.tree.leaves(self._met)))
        self._moved = [leaf for carry in self._others for leaf in jax.tree.leaves(self._carried[carry.inner])]
        states = self._states
        known, sources = store | self._carried | {self._state.value: states}, []
        for ref in self._unit.cuts:
            for leaf in jax.tree.leaves(ref.pick(known[ref.value])):
                sources.append((np.asarray(leaf), ref.value == self._state.value))
        self._sees_first = any(array is states.first for array, _ in sources)
        self._call.begin(store, clock.seed, sources, _flat(self._tails[None]))

    def _tell_time(self, clock: Clock) -> None:
        """What a call is told of each place: environment, iteration and total, turns."""
        if not self._tails.shape[-1]:
            turns = np.arange(len(self._tails), dtype=np.int32)[:, None] % self._a_set
            self._tails = np.zeros((*self._tails.shape[:2], len(clock.now) + 2), np.int32)
            self._tails[..., 0], self._tails[..., -1] = np.asarray(clock.env_index), turns
        for first, more in ((self._first, 0), (self._next, 1)):  # whoever is ahead is in the next iteration
            self._tails[first : first + self._a_set, :, 1:-1] = clock.now
            self._tails[first : first + self._a_set, :, 1] += more

    def stacked(self, leaf: Any) -> Callable[[], Any] | None:
        """How to get a value that acting computed, stacked over all turns."""
        if not isinstance(leaf, Ref) or leaf.value not in self._unit.outputs:
            return None
        return lambda: self._kept(leaf)

    def _kept(self, tree: Any) -> Any:
        """What acting computed in all turns of this rollout: views, made once for each set of arrays."""
        made = self._views.setdefault(self._first, {})
        if id(tree) not in made:  # all trees live as long as the loop
            lead = (self._scope.trips, self._envs)
            made[id(tree)] = self._call.kept(tree, self._first * self._envs, lead)
        return made[id(tree)]


def _flat(array: np.ndarray) -> np.ndarray:
    """Arrays of all sets, [set, turn, env, ...], by place: no copy is made."""
    return array.reshape(-1, *array.shape[3:])
