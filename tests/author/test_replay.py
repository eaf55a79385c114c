"""The replay handle's body: a ring per environment, drawn from by priority."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import QLearning

from sherd import UsageError, trace
from sherd.author.replay import _add, _draw, _empty, _reprioritise
from sherd.envs import describe


def steps(start: int, count: int, envs: int) -> jax.Array:
    """Numbered steps: step t of environment e is t + e / 10."""
    return jnp.arange(start, start + count)[:, None] + jnp.arange(envs)[None] / 10


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8), rows=st.integers(5, 9))
def test_the_ring_holds_the_last_steps(lengths, rows):
    replay = _empty(steps(0, 1, 2), rows)
    total = 0
    for length in lengths:
        replay = _add(replay, steps(total, length, 2))
        total += length
    held = np.sort(np.asarray(replay.data)[np.asarray(replay.priority) > 0].reshape(-1, 2)[:, 0])
    np.testing.assert_allclose(held, np.arange(max(0, total - rows), total))
    assert int(replay.filled) == min(total, rows)


def test_draws_are_uniform_and_stay_with_their_environment():
    replay = _add(_empty(steps(0, 1, 3), 8), steps(0, 5, 3))
    keys = jax.random.split(jax.random.key(0), 3)
    sample = _draw(replay, keys, 6000, 0.0)
    np.testing.assert_allclose(np.asarray(sample.data) % 1, np.tile([0, 0.1, 0.2], (6000, 1)), atol=1e-5)
    counts = np.stack([np.bincount(np.asarray(sample.index)[:, e], minlength=8) for e in range(3)])
    assert (counts[:, 5:] == 0).all()
    np.testing.assert_allclose(counts[:, :5] / 6000, 0.2, atol=0.02)
    np.testing.assert_allclose(sample.weight, 1)


def test_draws_follow_priorities_and_weights_correct_them():
    replay = _add(_empty(steps(0, 1, 1), 4), steps(0, 4, 1))
    priority = jnp.array([[1.0], [2.0], [3.0], [4.0]])
    replay = _reprioritise(replay, jnp.arange(4)[:, None], priority)
    sample = _draw(replay, jax.random.split(jax.random.key(1), 1), 20_000, 1.0)
    index = np.asarray(sample.index)[:, 0]
    frequency = np.bincount(index, minlength=4) / 20_000
    np.testing.assert_allclose(frequency, [0.1, 0.2, 0.3, 0.4], atol=0.015)
    # With full correction every step counts the same: frequency times weight is constant.
    weight = np.array([np.asarray(sample.weight)[index == i, 0][0] for i in range(4)])
    np.testing.assert_allclose(weight, [1, 1 / 2, 1 / 3, 1 / 4], rtol=1e-5)


def test_priorities_land_on_the_steps_that_were_drawn():
    replay = _add(_empty(steps(0, 1, 2), 8), steps(0, 8, 2))
    sample = _draw(replay, jax.random.split(jax.random.key(2), 2), 3, 0.0)
    changed = _reprioritise(replay, sample.index, 100 + sample.data)
    for row, env in np.ndindex(8, 2):
        drawn = row in np.asarray(sample.index)[:, env]
        expected = 100 + row + env / 10 if drawn else 1.0
        assert float(changed.priority[row, env]) == pytest.approx(expected)


@dataclass(frozen=True)
class Uneven(QLearning):
    batch: int = 10


def test_a_batch_that_environments_cannot_share():
    with pytest.raises(UsageError, match="multiple of 8"):
        trace(Uneven(), describe("CartPole-v1"), envs=8)


@dataclass(frozen=True)
class Early(QLearning):
    def loop(self, env, learner, state, replay):
        for sample in replay.sample(self.batch):
            learner.step(self.loss, state.target, sample)


def test_sampling_before_adding():
    with pytest.raises(UsageError, match="before anything was put in"):
        trace(Early(), describe("CartPole-v1"), envs=8)
