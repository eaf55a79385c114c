"""Whether a `HostEnv` keeps the contract: what every adapter of Sherd's must do, checked from outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sherd.envs.host.faulty_leaf import Fault, difference, named, sample_action
from sherd.envs.host.leaves import row_writer
from sherd.spaces import HostEnv, StepOut, Tree, step_buffers, tree_map, zeros

_OURS = "this is a fault of Sherd's adapter: please report it"


def batch_faults(batch: HostEnv, steps: int, seed: int) -> Iterator[Fault]:
    """Step a batch with random actions and yield each breach of the contract."""
    action_space, count = batch.spec.action, batch.num_envs
    action_space.seed(seed)
    out = step_buffers(batch.spec, count)
    action, write = zeros(action_space, (count,)), row_writer(action_space)
    batch.reset(out.obs)
    first = _row(out.obs, 0)
    ends, unchanged, varied = 0, 0, False
    for _ in range(steps):
        for row in range(count):
            write(action, row, sample_action(action_space, _row(out.obs, row)))
        batch.step(action, out)
        yield from _step_faults(out)
        varied = varied or difference(first, _row(out.obs, 0)) is not None
        for row in (out.terminated | out.truncated).nonzero()[0]:
            ends += 1
            unchanged += difference(_row(out.next_obs, row), _row(out.obs, row)) is None
    # One coincidence is chance: a small discrete observation may repeat itself.
    if varied and ends > 1 and unchanged == ends:
        yield Fault(
            "adapter", "", "rows that ended kept their final observation instead of a first one", _OURS
        )


def _step_faults(out: StepOut) -> Iterator[Fault]:
    for row in (~(out.terminated | out.truncated)).nonzero()[0]:
        leaf = difference(_row(out.next_obs, row), _row(out.obs, row))
        if leaf is not None:
            yield Fault("adapter", leaf, f"{named(leaf)}: obs is not next_obs within an episode", _OURS)
    if not np.isfinite(out.reward).all():
        bad = out.reward[~np.isfinite(out.reward)][0]
        yield Fault("reward", "reward", f"the reward is {bad}", "keep rewards finite")


def _row(tree: Tree, row: Any) -> Tree:
    return tree_map(lambda leaf: leaf[row].copy(), tree)
