"""The replay handle: what is held, what is drawn and how often, and where priorities land."""

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
from sherd.author import ring
from sherd.author.replay import importance_weights
from sherd.author.ring import Ring
from sherd.envs import describe


def steps(start: int, count: int, envs: int) -> jax.Array:
    """Numbered steps: step t of environment e is t + e / 10."""
    return jnp.arange(start, start + count)[:, None] + jnp.arange(envs)[None] / 10


class Kept:
    """A replay memory by itself."""

    def __init__(self, sizes: Ring, envs: int) -> None:
        self.sizes, self.envs = sizes, envs
        self.memory = ring.empty_memory(sizes, steps(0, sizes.added, envs))
        self.index = ring.empty_index(sizes, envs)
        self.total = 0

    def add(self, times: int = 1) -> Kept:
        for _ in range(times):
            new = steps(self.total, self.sizes.added, self.envs)
            self.memory = ring.store(self.sizes, self.memory, self.index.added, new)
            self.index = ring.admit(self.sizes, self.index)
            self.total += self.sizes.added
        return self

    def draw(self, draws: int, seed: int = 0) -> tuple[ring.Drawn, np.ndarray]:
        keys = jax.random.split(jax.random.key(seed), self.envs)
        drawn = ring.draw(self.sizes, self.index, keys, draws)
        return drawn, np.asarray(ring.gather(self.sizes, self.memory, drawn.start))

    def reprioritise(self, start: jax.Array, priority: jax.Array, when: bool = True) -> None:
        self.index = ring.reprioritise(self.sizes, self.index, start, priority, when)

    def leaves(self) -> np.ndarray:
        """The priority of the window at every start that can be drawn: [window, env]."""
        return np.asarray(self.index.tree)[self.sizes.leaves :][: self.sizes.rows // self.sizes.stride]

    def drawable(self) -> list[int]:
        """The first steps of all whole windows, by the definition."""
        oldest = max(self.total - self.sizes.rows, 0)
        last = self.total - self.sizes.length
        return [s for s in range(oldest, last + 1) if s % self.sizes.stride == 0]


shapes = st.builds(
    lambda added, length, stride, times, prioritised: Ring(
        added * stride * (2 + (length + added) // (added * stride) + times),
        added,
        length,
        stride,
        prioritised,
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
)


@settings(max_examples=12, deadline=None)
@given(sizes=shapes, times=st.integers(1, 12))
def test_windows_are_whole_current_and_of_one_environment(sizes, times):
    kept = Kept(sizes, 2).add(times)
    if not kept.drawable():
        return
    drawn, found = kept.draw(16)
    assert set(np.asarray(drawn.start).ravel().tolist()) <= set(kept.drawable())
    whole = found if sizes.length > 1 else found[None]
    expected = np.asarray(drawn.start)[None] + np.arange(sizes.length)[:, None, None] + np.arange(2) / 10
    np.testing.assert_allclose(whole, expected, atol=1e-4)
    if sizes.prioritised:
        held = [s % sizes.rows // sizes.stride for s in kept.drawable()]
        assert (kept.leaves()[held] == 1).all()
        assert kept.leaves().sum() == 2 * len(held)


def frequencies(kept: Kept, draws: int = 20_000) -> np.ndarray:
    drawn, _ = kept.draw(draws)
    counts = [np.bincount(column, minlength=kept.total) for column in np.asarray(drawn.start).T]
    return np.stack(counts, axis=1) / draws


@pytest.mark.parametrize("prioritised", [False, True])
def test_draws_are_uniform(prioritised):
    kept = Kept(Ring(12, 2, 3, 1, prioritised), 3).add(9)
    found = frequencies(kept)
    assert kept.drawable() == list(range(6, 16))
    np.testing.assert_allclose(found[6:16], 0.1, atol=0.01)
    assert (found[:6] == 0).all()
    assert (found[16:] == 0).all()


def test_draws_follow_priorities_and_weights_correct_them():
    kept = Kept(Ring(4, 1, prioritised=True), 1).add(4)
    kept.reprioritise(jnp.arange(4)[:, None], jnp.array([[1.0], [2.0], [3.0], [4.0]]))
    np.testing.assert_allclose(frequencies(kept)[:, 0], [0.1, 0.2, 0.3, 0.4], atol=0.012)
    drawn, _ = kept.draw(1000)
    weight = importance_weights(drawn.likelier, 1.0)
    # With full correction every step counts the same: frequency times weight is constant.
    by_start = {int(s): float(w) for s, w in zip(drawn.start[:, 0], weight[:, 0])}
    np.testing.assert_allclose([by_start[i] for i in range(4)], [1, 1 / 2, 1 / 3, 1 / 4], rtol=1e-5)


def test_weights_against_the_paper():
    """w = (N P)^-beta / max w (Schaul et al., 2016, section 3.4), with P known from the priorities."""
    kept = Kept(Ring(8, 2, prioritised=True), 2).add(4)
    priority = np.random.default_rng(0).uniform(0.1, 3, (8, 2)).astype(np.float32)
    kept.reprioritise(jnp.arange(8)[:, None].repeat(2, 1), jnp.asarray(priority))
    drawn, _ = kept.draw(64)
    chance = priority / priority.sum(axis=0) / 2  # environments are drawn from evenly
    raw = np.array(
        [[(16 * chance[s, e]) ** -0.7 for e, s in enumerate(row)] for row in np.asarray(drawn.start)]
    )
    np.testing.assert_allclose(importance_weights(drawn.likelier, 0.7), raw / raw.max(), rtol=1e-5)


def test_priorities_land_on_the_windows_that_were_drawn():
    kept = Kept(Ring(8, 2, prioritised=True), 2).add(4)
    drawn, found = kept.draw(3)
    kept.reprioritise(drawn.start, jnp.asarray(100 + found))
    for row, env in np.ndindex(8, 2):
        chosen = row in np.asarray(drawn.start)[:, env]
        assert float(kept.leaves()[row, env]) == pytest.approx(100 + row + env / 10 if chosen else 1.0)


def test_a_late_priority_does_not_land_on_what_took_its_place():
    """As when a trainer writes the priorities of one batch to the next one."""
    kept = Kept(Ring(8, 2, prioritised=True), 1).add(4)
    drawn, _ = kept.draw(64)
    kept.add(2)  # steps 0 to 3 are gone, and 8 to 11 lie in their rows
    kept.reprioritise(drawn.start, jnp.full((64, 1), 50.0))
    still = sorted(set(np.asarray(drawn.start).ravel().tolist()) - {0, 1, 2, 3})
    assert still
    assert kept.leaves()[[s % 8 for s in still], 0].tolist() == [50.0] * len(still)
    assert kept.leaves()[[0, 1, 2, 3], 0].tolist() == [1.0] * 4


def test_a_window_named_twice_takes_the_larger_priority_and_nonsense_changes_nothing():
    kept = Kept(Ring(4, 1, prioritised=True), 1).add(4)
    kept.reprioritise(jnp.array([[2], [2], [3]]), jnp.array([[5.0], [3.0], [jnp.nan]]))
    kept.reprioritise(jnp.array([[1]]), jnp.array([[9.0]]), when=False)
    assert kept.leaves()[:, 0].tolist() == [1, 1, 5, 1]
    assert float(kept.index.tree[1, 0]) == 8
    assert kept.add().leaves()[:, 0].tolist() == [5, 1, 5, 1]  # a new step gets the highest so far


@dataclass(frozen=True)
class Uneven(QLearning):
    batch: int = 10


def test_a_batch_that_environments_cannot_share():
    with pytest.raises(UsageError, match="multiple of 8"):
        trace(Uneven(), describe("CartPole-v1"), envs=8)


@dataclass(frozen=True)
class Small(QLearning):
    capacity: int = 24


def test_a_memory_that_is_too_small():
    with pytest.raises(UsageError, match="capacity of 32 or more"):
        trace(Small(), describe("CartPole-v1"), envs=8)


@dataclass(frozen=True)
class Early(QLearning):
    def loop(self, env, learner, state, replay):
        for sample in replay.sample(self.batch):
            learner.step(self.loss, state.target, sample)


def test_sampling_before_adding():
    with pytest.raises(UsageError, match="before anything was put in"):
        trace(Early(), describe("CartPole-v1"), envs=8)


@dataclass(frozen=True)
class Unasked(QLearning):
    def loop(self, env, learner, state, replay):
        for _ in env.steps(self.horizon):
            env.step(self.explore(learner.params, env.obs))
        replay.add(env.rollout, capacity=self.capacity)
        for sample in replay.sample(self.batch):
            update = learner.step(self.loss, state.target, sample)
            replay.reprioritise(sample, update.metrics["loss"])


def test_priorities_that_nobody_keeps():
    with pytest.raises(UsageError, match="prioritised=True"):
        trace(Unasked(), describe("CartPole-v1"), envs=8)
