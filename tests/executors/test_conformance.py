"""The conformance matrix: placement never changes meaning.

Every policy, on every executor, gives what `Single` gives inline: parameters, optimiser, statistics, and the
episodes of every iteration. Bit for bit, or within a tolerance where replicas each reduce their share.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from conformance import (
    ALGORITHMS,
    ENVIRONMENTS,
    ENVS,
    ITERATIONS,
    SEED,
    TOLERANCE,
    WAYS,
    Cell,
    cells,
    page_table,
)
from leaks import no_leaks

import sherd
from sherd.envs import describe
from sherd.optimise import TOGETHER, optimise
from sherd.policies import DistributionPolicy, Fused, Single
from sherd.policies.partition import partition

pytestmark = pytest.mark.usefixtures("no_leaks")
__all__ = ["no_leaks"]

PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
TIMES = ("seconds", "steps_per_second", "restarts")  # of no meaning for what is learnt

Outcome = tuple[dict[str, Any], dict[str, np.ndarray]]


def outcome(algorithm: str, env: str, policy: DistributionPolicy, executor: str) -> Outcome:
    """What a run leaves: the state that all environments share, and the metrics of every iteration."""
    chosen: Any = ALGORITHMS[algorithm]
    run = sherd.train(
        chosen,
        ENVIRONMENTS[env],
        policy=policy,
        executor=executor,
        steps=ENVS * chosen.horizon * ITERATIONS,
        envs=ENVS,
        seed=SEED,
        eval_episodes=0,
    )
    kept = {name: jax.device_get(run.cells[name]) for name in run.graph.shared_cells()}
    return kept, {name: values for name, values in run.metrics.items() if name not in TIMES}


@functools.cache
def reference(algorithm: str, env: str) -> Outcome:
    """What every cell is compared with."""
    return outcome(algorithm, env, Single(), "inline")


def with_devices(count: int, *arguments: Any) -> Outcome:
    """An outcome from a process that has as many devices; this one may have fewer."""
    kept = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={count}"
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(outcome, *arguments).result()
    finally:
        os.environ["XLA_FLAGS"] = kept


def run_cell(cell: Cell) -> Outcome:
    arguments = cell.algorithm, cell.env, cell.way.policy(cell.replicas), cell.executor
    if cell.way.kind is Fused and cell.replicas > jax.local_device_count():
        return with_devices(cell.replicas, *arguments)
    return outcome(*arguments)


def require_same(found: Any, wanted: Any, exact: bool) -> None:
    """Compare trees of arrays, leaf by leaf, with the leaf's name in the message."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for (path, one), two in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted)):
        one, two, name = np.asarray(one), np.asarray(two), jax.tree_util.keystr(path)
        assert one.dtype == two.dtype, name
        if exact or not np.issubdtype(two.dtype, np.floating):
            np.testing.assert_array_equal(one, two, err_msg=name)
        else:
            np.testing.assert_allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("cell", list(cells()), ids=lambda cell: cell.label)
def test_placement_never_changes_meaning(cell: Cell) -> None:
    wanted, rows = reference(cell.algorithm, cell.env)
    found, told = run_cell(cell)
    require_same(found, wanted, cell.exact)
    assert set(told) == set(rows)
    for name in ("iteration", "steps", "episodes", "episode_return", "episode_length"):
        np.testing.assert_array_equal(told[name], rows[name], err_msg=name)
    require_same(told, rows, cell.exact)
