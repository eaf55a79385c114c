"""Rows: what processes report about an iteration, put together to one summary."""

from __future__ import annotations

from typing import Any

from sherd.executors.wiring import Wiring
from sherd.policies.partition import Fragments
from sherd.runtime.worker import WorkerSpec

EPISODES = ("episodes", "return_sum", "length_sum", "bad_rewards")
Summary = dict[str, float]


class Rows:
    """Collects reports until an iteration is complete.

    In an asynchronous run the learner's report completes a row, with whatever episodes ended meanwhile. A
    server that applies gradients one by one makes as many turns for a row as there are workers.
    """

    def __init__(self, cut: Fragments, leader: str, wiring: Wiring, asynchronous: bool) -> None:
        self._leader, self._asynchronous = leader, asynchronous
        owners = {cut.owner[node.name] for node in cut.graph.nodes() if node.role == "env"}
        self._expected = sum(wiring.shares(name) for name in owners)
        lanes = [wiring.lanes(c) for c in cut.crossings if c.how == "mean"]
        self.turns_per_row = max([1, *lanes]) if asynchronous else 1
        self._pending: dict[int, dict[Any, Summary]] = {}  # by iteration and sender
        self._metrics: dict[int, Summary] = {}
        self._loose: list[Summary] = []
        self.made = self.restarts = 0
        self.learnt = 0  # iterations that the leader has made
        self.used: dict[int, int] = {}  # by lane: steps that were learnt from, and those that were too old
        self.dropped: dict[int, int] = {}
        self._told = 0  # how many of those that were dropped are in rows already
        self.staleness = 0.0

    def add(
        self, worker: WorkerSpec, iteration: int, summary: Summary, news: dict[str, Any] | None = None
    ) -> None:
        """What one process reports of one iteration; what a successor reports again counts for nothing."""
        news = dict(news or {})
        sender = worker.name, news.pop("group", 0)
        episodes = {k: v for k, v in summary.items() if k in (*EPISODES, "bad_env")}
        if worker.fragment == self._leader and worker.replica == 0:
            self.learnt = max(self.learnt, iteration + 1)
            self.used, self.dropped = news.pop("used", {}), news.pop("dropped", {})
            self._metrics[iteration] = {k: v for k, v in summary.items() if k not in episodes} | {
                k: v for k, v in news.items() if v is not None
            }
        if episodes and self._asynchronous:
            self._loose.append(episodes)
        elif episodes and iteration >= self.made:
            self._pending.setdefault(iteration, {}).setdefault(sender, episodes)

    @property
    def incomplete(self) -> bool:
        """Whether an iteration was learnt from of which not all who acted in it have reported."""
        return bool(self._metrics) and not self._asynchronous

    def complete(self) -> list[Summary]:
        """The rows that are complete, in order."""
        rows = []
        while (row := self._next()) is not None:
            self.made += 1
            rows.append(row)
        return rows

    def _next(self) -> Summary | None:
        turns = range(self.made * self.turns_per_row, (self.made + 1) * self.turns_per_row)
        if any(turn not in self._metrics for turn in turns):
            return None
        if not self._asynchronous:
            if len(self._pending.get(self.made, ())) < self._expected:
                return None
            episodes = list(self._pending.pop(self.made).values())
        else:
            episodes, self._loose = self._loose, []
        metrics = _mean([self._metrics.pop(turn) for turn in turns])
        dropped = sum(self.dropped.values())
        fresh, self._told = dropped - self._told, dropped
        extra: Summary = {"restarts": float(self.restarts)}
        if self._asynchronous:
            self.staleness = metrics.pop("staleness", self.staleness)
            extra |= {"staleness": self.staleness, "dropped": float(fresh)}
        return _sum(episodes) | metrics | extra


def _sum(episodes: list[Summary]) -> Summary:
    total = {name: sum(one[name] for one in episodes) for name in EPISODES}
    bad = [one["bad_env"] for one in episodes if one["bad_rewards"]]
    return total | {"bad_env": bad[0] if bad else 0.0}


def _mean(metrics: list[Summary]) -> Summary:
    names = dict.fromkeys(name for one in metrics for name in one)
    values = {name: [one[name] for one in metrics if name in one] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}
