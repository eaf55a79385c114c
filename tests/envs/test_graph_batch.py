"""Batches of graph environments: what automatic reset means, and that rows do not know of each other."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from sherd.envs.graph import batch, registry
from sherd.envs.graph.batch import reset_all, step_all
from sherd.spaces import EnvSpec, carried_dtype


def keys_of(seed: int, count: int) -> Any:
    return jax.random.split(jax.random.key(seed), count)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(leaves(one), leaves(other)):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


class Counter:
    """An environment written carelessly: nested observation, 64-bit dtypes, weak types, a keyed reward."""

    def __init__(self) -> None:
        observation = gym_spaces.Dict({"count": gym_spaces.Discrete(9), "start": gym_spaces.Box(0, 1, (2,))})
        self.spec = EnvSpec("counter", observation, gym_spaces.Discrete(2), "graph")

    def reset(self, key: Any) -> Any:
        start = jax.random.uniform(key, (2,))
        return {"count": 0, "start": start, "key": key}, {"count": 0, "start": start}

    def step(self, key: Any, state: Any, action: Any) -> Any:
        state = {**state, "count": state["count"] + action}
        obs = {"count": state["count"], "start": state["start"]}
        return state, obs, jax.random.uniform(key), state["count"] >= 4, 0


def test_only_ended_rows_start_anew() -> None:
    env, keys = registry.make("graph/CartPole-v1"), keys_of(1, 5)
    state, _ = reset_all(env, keys)
    physics = state.physics.at[1].set(jnp.array([0.0, 0.0, 0.3, 0.0])).at[4, 0].set(5.0)
    state = state._replace(physics=physics, t=jnp.array([7, 7, 499, 7, 499], jnp.int32))
    action = jnp.array([0, 1, 0, 1, 0], jnp.int32)
    _, plain_obs, plain_reward, *_ = jax.vmap(env.step)(keys, state, action)

    after, obs, next_obs, reward, terminated, truncated = jax.jit(partial(step_all, env))(keys, state, action)

    assert terminated.tolist() == [False, True, False, False, True]
    assert truncated.tolist() == [False, False, True, False, True]
    np.testing.assert_allclose(next_obs, plain_obs, atol=1e-6)
    np.testing.assert_array_equal(reward, plain_reward)
    ended, going = [1, 2, 4], [0, 3]
    np.testing.assert_array_equal(np.asarray(obs)[going], np.asarray(next_obs)[going])
    assert np.all(abs(np.asarray(obs)[ended]) <= 0.05)
    assert len({row.tobytes() for row in np.asarray(obs)[ended]}) == 3, "each row draws its own start"
    assert after.t.tolist() == [8, 0, 0, 8, 0]
    np.testing.assert_array_equal(after.physics, obs)


def test_the_new_start_differs_from_the_one_that_the_same_key_gave() -> None:
    env, keys = registry.make("graph/CartPole-v1"), keys_of(2, 3)
    state, first = reset_all(env, keys)
    state = state._replace(t=jnp.full(3, 499, jnp.int32))
    _, obs, *_ = jax.jit(partial(step_all, env))(keys, state, jnp.zeros(3, jnp.int32))
    assert not np.any(np.asarray(obs) == np.asarray(first))


@pytest.mark.parametrize("name", registry.names())
def test_splitting_a_batch_changes_nothing(name: str) -> None:
    """Row by row the same, but for the last bit, which XLA may round by the shape it compiles for."""
    env, keys = registry.make(name), keys_of(3, 6)
    step = jax.jit(partial(step_all, env))
    state, _ = reset_all(env, keys)
    state = state._replace(t=env.time_limit - jnp.array([2, 3, 4, 5, 6, 7], jnp.int32))
    ends = 0
    for turn in range(8):
        turn_keys = jax.vmap(lambda key, turn=turn: jax.random.fold_in(key, turn))(keys)
        action = jnp.full((6, *env.spec.action.shape), turn % 2, carried_dtype(env.spec.action))
        whole = step(turn_keys, state, action)
        assert_same(whole, step(turn_keys, state, action))
        for part in (slice(0, 3), slice(3, 6)):
            rows = step(turn_keys[part], jax.tree.map(lambda leaf, p=part: leaf[p], state), action[part])
            for left, right in zip(leaves(whole), leaves(rows)):
                np.testing.assert_allclose(left[part], right, rtol=1e-6, atol=1e-6)
        state, ends = whole[0], ends + int((whole[4] | whole[5]).sum())
    assert ends >= 6


def test_both_ways_of_restarting_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """More ended rows than a block holds, and fewer, against computing every row."""
    monkeypatch.setattr(batch, "_BLOCK", 4)
    env, keys = registry.make("graph/Pendulum-v1"), keys_of(4, 13)
    now = reset_all(env, keys_of(5, 13))
    some, every = (jax.jit(partial(way, env)) for way in (batch._restart_blocks, batch._restart_where))
    for ended in (np.zeros(13, bool), np.ones(13, bool), np.arange(13) % 3 == 0, np.arange(13) == 12):
        blocks = some(keys, jnp.asarray(ended), now)
        assert_same(blocks, every(keys, jnp.asarray(ended), now))
        for old, new in zip(leaves(now), leaves(blocks)):
            np.testing.assert_array_equal(old[~ended], new[~ended])
        assert not (np.asarray(blocks[1])[ended] == np.asarray(now[1])[ended]).any()


def test_rows_reset_for_accelerators_too() -> None:
    """The program lowered for a GPU has no loop whose length depends on data; the CPU's has one."""
    env, keys = registry.make("graph/CartPole-v1"), keys_of(0, 3)
    state, _ = reset_all(env, keys)
    traced = jax.jit(partial(step_all, env)).trace(keys, state, jnp.zeros(3, jnp.int32))
    cpu = traced.lower(lowering_platforms=("cpu",)).as_text()
    gpu = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert cpu.count("stablehlo.scatter") > 0
    assert gpu.count("stablehlo.scatter") == 0


def test_careless_environments_are_carried_in_declared_dtypes() -> None:
    env, keys = Counter(), keys_of(6, 4)
    state, obs = reset_all(env, keys)
    assert (obs["count"].dtype, obs["start"].dtype) == (jnp.int32, jnp.float32)
    step = jax.jit(lambda state: step_all(env, keys, state, jnp.array([0, 1, 1, 0], jnp.int32)))
    for _ in range(4):
        state, obs, next_obs, reward, terminated, truncated = step(state)
    assert step._cache_size() == 1, "weak types must not compile the step twice"
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (jnp.float32, bool, bool)
    assert terminated.tolist() == [False, True, True, False]
    assert (next_obs["count"].tolist(), obs["count"].tolist()) == ([0, 4, 4, 0], [0, 0, 0, 0])
    assert jax.random.key_data(state["key"])[1].tolist() != jax.random.key_data(keys)[1].tolist()
