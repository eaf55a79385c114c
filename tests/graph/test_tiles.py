"""Acting in tiles gives the same bits however many environments are batched."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.algorithms.ppo import PPO
from sherd.author.keys import Frame, run_key
from sherd.envs import describe
from sherd.graph import check, trace
from sherd.graph.tiles import tile_acting

ENVS = 12


def explore(tile: int):
    """PPO's acting with layers wide enough to round differently, as a compiled function of its inputs."""
    algorithm = PPO(hidden=(256, 256))
    graph = check(tile_acting(trace(algorithm, describe("CartPole-v1"), ENVS), tile))
    op = next(node.op for node in graph.nodes() if node.role == "act")
    bound = algorithm.bind(describe("CartPole-v1"))
    params = bound.init(jax.random.key(0))
    scales = bound.state(params)["scales"].build(ENVS)

    @jax.jit
    def act(obs, index):
        keys = Frame(run_key(0), 0, 1, index).env_keys("explore")
        return op.function(params, scales, obs, jnp.zeros(len(obs), bool), (), keys)

    return act


def differences(act, rows: int) -> float:
    rng, most = np.random.default_rng(0), 0.0
    for _ in range(20):
        obs = rng.normal(size=(ENVS, 4)).astype(np.float32)
        whole = jax.tree.leaves(act(obs, jnp.arange(ENVS)))
        for low in range(0, ENVS, rows):
            part = jax.tree.leaves(act(obs[low : low + rows], jnp.arange(low, low + rows)))
            for a, b in zip(whole, part):
                most = max(most, float(np.abs(np.asarray(a[low : low + rows]) - np.asarray(b)).max()))
    return most


@pytest.mark.parametrize("rows", [1, 3, 4, 6])
def test_tiled_acting_does_not_depend_on_the_batch(rows):
    assert differences(explore(tile=4), rows) == 0


def test_without_tiles_it_may(record_property):
    """Not a property anyone relies on: it shows that the test above would see a difference."""
    found = differences(explore(tile=0), 1)
    record_property("difference", found)
    assert found > 0
