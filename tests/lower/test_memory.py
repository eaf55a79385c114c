"""Replay memory on the host is the same as in the program: same rows, same windows, same learning."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import QLearning

import sherd
from sherd.author import ring
from sherd.author.ring import Ring
from sherd.author.stage import Op
from sherd.errors import Source, UsageError
from sherd.graph.ir import Node, Ref
from sherd.lower.memory import HostGather, HostStore, private_memory
from sherd.lower.parts import fill


def steps(start: int, count: int, envs: int) -> jax.Array:
    return jnp.arange(start, start + count)[:, None] + jnp.arange(envs)[None] / 10


def bodies(sizes: Ring, envs: int):
    """The same memory twice, by the functions of a program and by those of the host."""

    def node(function):
        count = 3 if function is ring.store else 2
        return Node(
            "", Op("", "replay", partial(function, sizes)), tuple(map(Ref, range(count))), 9, Source("", 0)
        )

    return HostStore(node(ring.store), fill), HostGather(node(ring.gather), fill)


@settings(max_examples=10, deadline=None)
@given(
    added=st.integers(1, 3),
    length=st.integers(1, 4),
    adds=st.integers(1, 8),
    seed=st.integers(0, 99),
    prioritised=st.booleans(),
)
def test_both_bodies_hold_and_give_the_same(added, length, adds, seed, prioritised):
    sizes = Ring(added * (length + 4), added, length, 1, prioritised)
    example = {"number": steps(0, added, 2), "pair": jnp.zeros((added, 2, 2), jnp.uint8)}
    inside, index = ring.empty_memory(sizes, example), ring.empty_index(sizes, 2)
    outside = private_memory(jax.eval_shape(lambda: ring.empty_memory(sizes, example)))
    store, gather = bodies(sizes, 2)
    for turn in range(adds):
        new = {
            "number": steps(turn * added, added, 2),
            "pair": (jnp.arange(added * 4) + turn).astype(jnp.uint8).reshape(added, 2, 2),
        }
        values = {0: outside, 1: index.added, 2: new}
        store.run(values, None)
        outside = values[9]
        inside, index = ring.store(sizes, inside, index.added, new), ring.admit(sizes, index)
        jax.tree.map(np.testing.assert_array_equal, outside, jax.device_get(inside))
        drawn = ring.draw(sizes, index, jax.random.split(jax.random.key(seed + turn), 2), 3)
        values = {0: outside, 1: drawn.start}
        gather.run(values, None)
        wanted = jax.device_get(ring.gather(sizes, inside, drawn.start))
        jax.tree.map(np.testing.assert_array_equal, values[9], wanted)
        index = (
            ring.reprioritise(sizes, index, drawn.start, 1.0 + drawn.start % 5, True)
            if prioritised
            else index
        )


def learnt(replay: str):
    run = sherd.train(QLearning(), "CartPole-v1", steps=1280, envs=8, seed=1, eval_episodes=0, replay=replay)
    return jax.device_get(run.cells["learner"])


def test_a_run_learns_the_same_with_either():
    jax.tree.map(np.testing.assert_array_equal, learnt("graph"), learnt("host"))


def test_one_compiled_program_keeps_replay_inside():
    with pytest.raises(UsageError, match="one compiled program"):
        sherd.train(QLearning(), "graph/CartPole-v1", "Fused", steps=64, envs=8, replay="host")
