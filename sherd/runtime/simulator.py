"""A process that only steps simulators: it never loads JAX, starts at once and needs little memory.

Its environments form groups (the ring). A group waits for its actions, is stepped, and sends what acting
needs at once; the rest of what happened goes, row by row, straight into the message that the learner takes at
the end of the rollout. So whatever this process did until it was killed is still there for its successor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sherd.envs import make_host
from sherd.runtime.shared import Closed
from sherd.runtime.streams import AnyReader, Reader, Stream, Writer
from sherd.runtime.worker import Context
from sherd.spaces import StepOut, tree_map, zeros

Path = tuple[Any, ...]
AFTER_A_DEATH = 7_919  # seeds of a successor lie this far from its predecessor's


@dataclass(frozen=True)
class Source:
    """Where a leaf of a message is found: "before" or "after" a step, in its "transition" or "episode"."""

    group: str
    path: Path


@dataclass(frozen=True)
class Outlet:
    """A message of this group: its place in a stream, and what it is made of."""

    stream: Stream
    writer: int
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Simulation:
    """One group of environments and what it exchanges."""

    env: Any
    seed: int
    first: int
    count: int
    trips: int
    iterations: int | None  # None: until the run is closed
    actions: Stream
    action_paths: tuple[Path, ...]
    each_step: tuple[Outlet, ...]
    each_rollout: tuple[Outlet, ...]


def run(payload: tuple[Simulation, ...], context: Context) -> None:
    """Step all groups, whichever has its actions first."""
    arrivals = AnyReader([simulation.actions for simulation in payload], context.watch)
    groups = [_Group(one, context, reader) for one, reader in zip(payload, arrivals.readers)]
    try:
        for group in groups:
            group.begin()
        context.send(("ready",))
        while not all(group.done for group in groups):
            with context.clock.waiting():
                ready = arrivals.take_ready()
            for index in ready:
                groups[index].step()
    finally:
        for group in groups:
            group.env.close()


def follow(tree: Any, path: Path) -> Any:
    """The leaf that a path leads to.

    >>> follow({"a": (1, 2)}, ("a", 1))
    2
    """
    for key in path:
        tree = tree[key]
    return tree


class _Group:
    """Environments that are stepped together."""

    def __init__(self, plan: Simulation, context: Context, actions: Reader) -> None:
        self.plan, self._context, self._actions = plan, context, actions
        seed = plan.seed + AFTER_A_DEATH * context.attempt
        self.env = make_host(plan.env, plan.count, seed, first_index=plan.first)
        spec, rows, count = self.env.spec, (plan.trips, plan.count), (plan.count,)
        self._action = zeros(spec.action, count)
        self._actions_at = [follow(self._action, path) for path in plan.action_paths]
        flags = {name: np.zeros(plan.count, bool) for name in ("terminated", "truncated")}
        self._transition = {
            "next_obs": zeros(spec.observation, count),
            "reward": np.zeros(plan.count, np.float32),
            "action": self._action,
            **flags,
        }
        self._before, self._after = self._state(), self._state()
        self._episode = {
            "ended": np.zeros(plan.count, bool),
            "episode_return": np.zeros(plan.count, np.float32),
            "episode_length": np.zeros(plan.count, np.int32),
        }
        self._episodes = {name: np.zeros(rows, a.dtype) for name, a in self._episode.items()}
        self._each_step = [self._open(outlet) for outlet in plan.each_step]
        self._each_rollout = [self._open(outlet) for outlet in plan.each_rollout]

    def _state(self) -> dict[str, Any]:
        count = self.plan.count
        return {
            "obs": zeros(self.env.spec.observation, (count,)),
            "first": np.ones(count, bool),
            "episode_return": np.zeros(count, np.float32),
            "episode_length": np.zeros(count, np.int32),
        }

    def _open(self, outlet: Outlet) -> tuple[Writer, tuple[Source, ...]]:
        return outlet.stream.writer(outlet.writer, self._context.watch), outlet.sources

    def _leaf(self, source: Source) -> np.ndarray[Any, Any]:
        groups: dict[str, Any] = {
            "before": self._before,
            "after": self._after,
            "transition": self._transition,
            "episode": self._episode,
        }
        found: np.ndarray[Any, Any] = follow(groups[source.group], source.path)
        return found

    @property
    def sent(self) -> int:
        """Steps whose outcome was sent, over all iterations; -1 before the first observation."""
        return min(writer.published for writer, _ in self._each_step) - 1

    @property
    def turn(self) -> int:
        return self.sent % self.plan.trips

    @property
    def done(self) -> bool:
        return self.plan.iterations is not None and self.sent >= self.plan.iterations * self.plan.trips

    def begin(self) -> None:
        """Reset. The first sends what it sees; a successor first answers for the step that was lost."""
        self.env.reset(self._after["obs"])
        self._lost = self.sent >= 0
        if not self._lost:
            self._send_each_step()
        elif self._actions.released < self.sent:
            self._actions.take()  # its outcome was sent before the predecessor died
            self._actions.release()
        for writer, _ in self._each_rollout:
            if writer.published < self.sent // self.plan.trips:  # it was complete, and not yet handed over
                writer.slot()
                writer.publish()
        if self.sent >= self.plan.trips:  # nor perhaps reported; a second report counts for nothing
            self._report()

    def step(self) -> None:
        """Take the actions, step, and send what happened."""
        clock = self._context.clock
        if self.done:
            raise Closed("nothing is left to do")
        turn = self.turn
        for place, action in zip(self._actions_at, self._actions.take()):
            np.copyto(place, action)
        self._before, self._after = self._after, self._before
        if self._lost:
            self._make_up()
        else:
            self._advance()
        with clock.sending():
            self._keep(turn)
            self._send_each_step()
        self._actions.release()
        clock.count(self.plan.count)
        if turn + 1 == self.plan.trips:
            self._finish()

    def _advance(self) -> None:
        t, episode, before, after = self._transition, self._episode, self._before, self._after
        out = StepOut(after["obs"], t["next_obs"], t["reward"], t["terminated"], t["truncated"])
        self.env.step(self._action, out)
        np.logical_or(t["terminated"], t["truncated"], out=episode["ended"])
        np.add(before["episode_return"], t["reward"], out=episode["episode_return"])
        np.add(before["episode_length"], 1, out=episode["episode_length"])
        self._carry_on(episode["ended"])

    def _carry_on(self, ended: np.ndarray[Any, Any]) -> None:
        after, running = self._after, np.logical_not(ended)
        after["first"][:] = ended
        np.multiply(self._episode["episode_return"], running, out=after["episode_return"])
        np.multiply(self._episode["episode_length"], running, out=after["episode_length"])

    def _make_up(self) -> None:
        """The step in which the predecessor died: its episodes are cut off where they were last seen."""
        self._lost = False
        tree_map(np.copyto, self._after["obs"], self._before["obs"])  # what the reset showed
        self._recall(self._before["obs"])
        tree_map(np.copyto, self._transition["next_obs"], self._before["obs"])
        self._transition["reward"][:] = 0
        self._transition["terminated"][:] = False
        self._transition["truncated"][:] = True
        self._episode["ended"][:] = False  # not an episode to count
        for name in ("episode_return", "episode_length"):
            self._episode[name][:] = 0
        self._carry_on(np.ones(self.plan.count, bool))

    def _recall(self, obs: Any) -> None:
        """The observation that was sent last, which is what acting acted on."""
        for (writer, sources), outlet in zip(self._each_step, self.plan.each_step):
            slot = outlet.stream.views(writeable=False)[(writer.published - 1) % outlet.stream.spec.slots]
            low, high = outlet.stream.spec.rows[outlet.writer]
            for source, array in zip(sources, slot):
                if source.group == "after" and source.path[0] == "obs":
                    np.copyto(follow({"obs": obs}, source.path), array[low:high])

    def _keep(self, turn: int) -> None:
        for name, array in self._episode.items():
            self._episodes[name][turn] = array
        for writer, sources in self._each_rollout:
            for view, source in zip(writer.slot(), sources):
                view[turn] = self._leaf(source)

    def _send_each_step(self) -> None:
        for writer, sources in self._each_step:
            for view, source in zip(writer.slot(), sources):
                np.copyto(view, self._leaf(source))
            writer.publish()

    def _finish(self) -> None:
        for writer, _ in self._each_rollout:
            writer.publish()
        self._report()

    def _report(self) -> None:
        iteration = self.sent // self.plan.trips - 1
        self._context.send(("episodes", iteration, summarise(self._episodes), {"group": self.plan.first}))


def summarise(episodes: dict[str, np.ndarray[Any, Any]]) -> dict[str, float]:
    """Counts and sums over the episodes that ended, and which environment met a reward that is not finite."""
    ended = episodes["ended"]
    bad = ~np.isfinite(episodes["episode_return"]).all(axis=0)
    return {
        "episodes": float(ended.sum()),
        "return_sum": float(np.where(ended, episodes["episode_return"], 0.0).sum()),
        "length_sum": float(np.where(ended, episodes["episode_length"], 0).sum()),
        "bad_rewards": float(bad.sum()),
        "bad_env": float(bad.argmax()),
    }
