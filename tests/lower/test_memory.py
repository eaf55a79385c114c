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
from sherd.author.keys import Frame, run_key
from sherd.author.ring import Ring
from sherd.author.stage import Op
from sherd.errors import Source, UsageError
from sherd.graph.ir import Node, Ref, Scope, Stack
from sherd.lower.draws import HostDraws, drawn_first
from sherd.lower.interpret import Values, run_scope
from sherd.lower.memory import HostGather, HostStore, private_memory
from sherd.lower.parts import Clock, HostRegion, fill
from sherd.lower.regions import NO_ENVIRONMENT, Region


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


@pytest.mark.parametrize("length", [1, 3])
def test_all_draws_of_a_loop_at_once_are_those_of_its_turns(length):
    """What a shard of replay memory does in an iteration, beside the loop as one program would run it."""
    sizes, envs, trips = Ring(12, 12, length, 1, False), 2, 4
    new = {"number": steps(0, 12, envs), "pair": jnp.arange(48).reshape(12, envs, 2)}
    memory = ring.store(sizes, ring.empty_memory(sizes, new), jnp.zeros(envs, jnp.int32), new)
    index = ring.admit(sizes, ring.empty_index(sizes, envs))
    draw = Op("draw", "replay", lambda index, keys: ring.draw(sizes, index, keys, 3), "env")
    gather = Op("gather", "replay", partial(ring.gather, sizes))
    start, here = Ref(3, (("attr", "start"),)), Source("", 0)
    body = (Node("draw", draw, (Ref(1),), 3, here), Node("gather", gather, (Ref(0), start), 4, here))
    stacks = (
        Stack("start", start, 5),
        Stack("drawn", Ref(4), 6),
        Stack("part", Ref(4, (("item", "pair"),)), 7),
    )
    loop = Scope("samples", trips, 2, body, (), stacks, here)
    drawing, gathers = drawn_first(loop, unused=8)
    region = Region([drawing], [Ref(1)], [5, 8], [])
    clock = Clock(jax.random.key_data(run_key(7)), jnp.arange(envs), np.array([3, 9], np.int32))
    host = HostDraws(loop, gathers, HostRegion(region, region.compile()), first=8)
    found = {0: jax.tree.map(np.array, memory), 1: index}
    host.run(found, clock)
    wanted = Values({Ref(0): memory, Ref(1): index})
    run_scope(loop, wanted, Frame(run_key(7), 3, 9, jnp.arange(envs)), NO_ENVIRONMENT)
    for outer in (5, 6, 7):
        jax.tree.map(np.testing.assert_array_equal, found[outer], wanted[Ref(outer)])


@pytest.mark.parametrize("role", ["learn", "send"])
def test_a_loop_that_also_does_something_else_is_walked(role):
    """A node that waits for what was gathered, and a message."""
    sizes, here = Ring(12, 12, 1, 1, False), Source("", 0)
    draw = Node("draw", Op("draw", "replay", lambda: 0), (), 3, here)
    gather = Node("gather", Op("gather", "replay", partial(ring.gather, sizes)), (Ref(0), Ref(3)), 4, here)
    other = Node("other", Op("other", role, lambda data: data), (Ref(4 if role == "learn" else 3),), 5, here)
    assert drawn_first(Scope("samples", 2, 2, (draw, gather), (), (), here), unused=8)
    assert drawn_first(Scope("samples", 2, 2, (draw, gather, other), (), (), here), unused=8) is None


def learnt(replay: str):
    run = sherd.train(QLearning(), "CartPole-v1", steps=1280, envs=8, seed=1, eval_episodes=0, replay=replay)
    return jax.device_get(run.cells["learner"])


def test_a_run_learns_the_same_with_either():
    jax.tree.map(np.testing.assert_array_equal, learnt("graph"), learnt("host"))


def test_one_compiled_program_keeps_replay_inside():
    with pytest.raises(UsageError, match="one compiled program"):
        sherd.train(QLearning(), "graph/CartPole-v1", "Fused", steps=64, envs=8, replay="host")
