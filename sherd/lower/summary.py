"""What an iteration tells the outside, reduced to a few numbers before it leaves the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from sherd.author import reduce
from sherd.author.ops import WEIGHT
from sherd.author.types import Episode
from sherd.errors import Source
from sherd.graph.ir import Graph

Summary = dict[str, Any]


def metric_names(graph: Graph) -> list[dict[str, str]]:
    """For every report of a graph, the name under which each of its metrics is shown.

    Two learners may both report a `loss`: the later one is numbered.
    """
    taken: set[str] = set()
    names: list[dict[str, str]] = []
    for stack in graph.reports:
        if stack.channel != "metrics":
            continue
        keys = [key for key in graph.values[stack.outer].type if key != WEIGHT]
        mine = {key: key if key not in taken else f"{key}.{len(names)}" for key in keys}
        taken.update(mine.values())
        names.append(mine)
    return names


@dataclass(frozen=True)
class UpdateMetrics:
    """What one `learner.step` reports: all names, and those that tell whether it was made and is finite."""

    source: Source
    shown: tuple[str, ...]
    telling: tuple[str, ...]

    def left_out(self, summary: Summary) -> bool:
        """Whether no such update was made in an iteration: nothing counted, so that every mean is zero."""
        return not any(summary.get(name) for name in self.telling)

    def failed(self, summary: Summary) -> bool:
        """Whether an update was not finite in an iteration."""
        return not all(math.isfinite(summary.get(name, 0.0)) for name in self.telling)


def update_metrics(graph: Graph) -> list[UpdateMetrics]:
    """What every `learner.step` of the loop reports, in the order of the loop.

    Reports leave scopes in program order, so the reports of updates are those of the nodes that apply them.
    """
    types = [graph.values[stack.outer].type for stack in graph.reports if stack.channel == "metrics"]
    updates = [shown for kinds, shown in zip(types, metric_names(graph)) if WEIGHT in kinds]
    found = []
    for node, shown in zip((node for node in graph.nodes() if node.role == "apply"), updates):
        part = next(key.removesuffix("update_scale") for key in shown if key.endswith("update_scale"))
        telling = tuple(shown[part + key] for key in ("loss", "grad_norm", "update_scale"))
        found.append(UpdateMetrics(node.source, tuple(shown.values()), telling))
    return found


def summarise_reports(names: list[dict[str, str]], reports: tuple[dict[str, Any], ...]) -> Summary:
    """Weighted means of the metrics over everything an iteration reported."""
    summary = {}
    for mine, report in zip(names, reports):
        weight = jnp.asarray(report.get(WEIGHT, 1.0), jnp.float32)
        total = jnp.maximum(weight.sum(), 1e-8)
        for key, shown in mine.items():
            value = jnp.asarray(report[key], jnp.float32)
            spread = jnp.broadcast_to(weight, value.shape) if weight.ndim else weight
            # Where an update was left out its metrics may be anything, also not finite.
            counted = jnp.where(spread > 0, value * spread, 0.0)
            summary[shown] = (
                counted.sum() / total if weight.ndim else jnp.where(weight > 0, value.mean(), 0.0)
            )
    return summary


def summarise_episodes(episodes: tuple[Episode, ...], xp: Any = jnp) -> Summary:
    """Counts and sums over the episodes that ended, and which environment met a reward that is not finite."""
    ended = xp.concatenate([e.ended.reshape(-1, e.ended.shape[-1]) for e in episodes])
    returns = xp.concatenate([e.episode_return.reshape(-1, e.ended.shape[-1]) for e in episodes])
    lengths = xp.concatenate([e.episode_length.reshape(-1, e.ended.shape[-1]) for e in episodes])
    bad = ~xp.isfinite(returns).all(axis=0)
    return {
        "episodes": ended.sum(),
        "return_sum": xp.where(ended, returns, 0.0).sum(),
        "length_sum": xp.where(ended, lengths, 0).sum(),
        "bad_rewards": bad.sum(),
        "bad_env": bad.argmax(),
    }


def across_replicas(summary: Summary) -> Summary:
    """Add up the episode counts of all replicas; means are already the same everywhere."""
    sums = ("episodes", "return_sum", "length_sum", "bad_rewards")
    return {name: reduce.total(value) if name in sums else value for name, value in summary.items()}
