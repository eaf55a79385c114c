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
    EXECUTORS,
    ITERATIONS,
    SEED,
    TASKS,
    TOLERANCE,
    WAYS,
    Cell,
    Task,
    cells,
    env_of,
    matrix,
    page_table,
    task_table,
)
from leaks import no_leaks
from thorough import mostly_thorough

import sherd
from sherd.algorithms import BUILT_IN as ALGORITHM_NAMES
from sherd.envs import describe
from sherd.optimise import TOGETHER, optimise
from sherd.policies import BUILT_IN, DistributionPolicy, Fused, ReplayShards, Single
from sherd.policies.central import Central
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.environments import Environments
from sherd.policies.partition import partition
from sherd.policies.project import projection

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
        env_of(algorithm, env),
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


ALWAYS = [cell for cell in cells() if not cell.thorough]


@pytest.mark.parametrize("cell", mostly_thorough(cells(), ALWAYS), ids=lambda cell: cell.label)
def test_placement_never_changes_meaning(cell: Cell) -> None:
    wanted, rows = reference(cell.algorithm, cell.env)
    found, told = run_cell(cell)
    require_same(found, wanted, cell.exact)
    assert set(told) == set(rows)
    for name in ("iteration", "steps", "episodes", "episode_return", "episode_length"):
        np.testing.assert_array_equal(told[name], rows[name], err_msg=name)
    require_same(told, rows, cell.exact)


@pytest.mark.parametrize("algorithm", mostly_thorough(ALGORITHMS, ("PPO", "small", "DQN")))
def test_merged_into_one_process_all_policies_are_one_program(algorithm: str) -> None:
    """Why the matrix need not run anything inline but Single."""
    graph = sherd.trace(ALGORITHMS[algorithm], describe(env_of(algorithm, "host")), ENVS)
    text = str(graph)
    for way in WAYS:
        for replicas in way.counts if way.kind is not Fused else ():
            merged = optimise(partition(graph, way.policy(replicas)), TOGETHER)
            (fragment,) = merged.fragments
            assert fragment.replicas == 1
            assert not merged.crossings
            assert str(projection(merged, fragment.name).graph) == text


def test_the_matrix_is_every_combination() -> None:
    whole = list(matrix())
    policies = {cell.way.kind.__name__ for cell in whole}
    assert policies == set(BUILT_IN)
    assert len(whole) == len(ALGORITHMS) * len(policies) * len(ENVIRONMENTS) * len(EXECUTORS)
    assert {type(one).__module__ for one in ALGORITHMS.values()} >= {
        path.partition(":")[0] for path in ALGORITHM_NAMES.values()
    }


@pytest.mark.parametrize("asynchronous", [SingleLearnerCoarse, Environments, Central])
def test_inline_nobody_runs_ahead(asynchronous: type[DistributionPolicy]) -> None:
    wanted, rows = reference("small", "host")
    found, told = outcome("small", "host", asynchronous(asynchronous=True), "inline")  # type: ignore[call-arg]
    require_same((found, told), (wanted, rows), exact=True)


# -- asynchronous policies


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", mostly_thorough(TASKS, TASKS[:1]), ids=lambda task: f"{task.name.split()[0]}-{task.policy.name}"
)
def test_asynchronous_policies_solve_the_task(task: Task) -> None:
    # No two runs are alike, and now and then one is lost in the last updates before it is evaluated.
    returns: list[float] = []
    while not returns or (returns[-1] < task.least and len(returns) < 2):
        run = sherd.train(
            task.algorithm, "CartPole-v1", task.policy, steps=task.steps, envs=8, seed=1, eval_episodes=20
        )
        returns.append(run.summary["return_mean"])
        require_balance(run, remembers=isinstance(task.policy, ReplayShards))
    assert max(returns) >= task.least


def require_balance(run: Any, remembers: bool = False) -> None:
    """Every sample was consumed, dropped or still under way; and what was consumed made the iterations."""
    ledger = run.summary["ledger"]
    dropped = sum(ledger["dropped"].values())
    assert ledger["produced"] == ledger["consumed"] + dropped + ledger["in_flight"]
    ahead = ledger["consumed"] - run.summary["steps"]
    # Shards may have remembered one rollout more than the learner came to draw from.
    assert ahead in ((0, run.graph.steps_per_iteration()) if remembers else (0,))
    assert dropped == run.metrics["dropped"].sum()


@pytest.mark.parametrize("kind", mostly_thorough([SingleLearnerCoarse, Environments, Central], [Central]))
def test_what_is_too_old_is_dropped_and_counted_and_learning_goes_on(kind: type[DistributionPolicy]) -> None:
    policy = kind(asynchronous=True, max_staleness=0)  # type: ignore[call-arg]
    chosen: Any = ALGORITHMS["PPO"]
    steps = ENVS * chosen.horizon * 20
    run = sherd.train(chosen, "CartPole-v1", policy, steps=steps, envs=ENVS, eval_episodes=0)
    assert run.metrics["dropped"].sum() > 0
    assert run.summary["steps"] == steps
    assert (run.metrics["staleness"] <= 0).all()
    assert len(np.unique(run.metrics["entropy"])) > 10, "parameters kept changing"
    require_balance(run)


# -- the page


@pytest.mark.parametrize(("name", "table"), [("conformance", page_table), ("asynchronous", task_table)])
def test_the_page_shows_what_is_tested(name: str, table: Any) -> None:
    before, opening, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    present, closing, after = rest.partition(f"<!-- /{name} -->")
    assert opening
    assert closing
    if os.environ.get("SHERD_UPDATE_DOCS"):
        PAGE.write_text(before + opening + table() + closing + after, encoding="utf-8")
    else:
        assert present == table()
