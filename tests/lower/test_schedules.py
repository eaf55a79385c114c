"""Schedules computed for many iterations at once are those that each iteration would compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.author.stage import Op
from sherd.errors import Source
from sherd.graph.ir import Node, Ref, Value
from sherd.lower.parts import Clock, HostRegion
from sherd.lower.regions import Region
from sherd.lower.schedules import HostSchedules, follows_from_counters

ITERATION, TOTAL, RESULT = 0, 1, 2
SCHEDULES = {
    "linear": lambda iteration, total: 1.0 - 0.95 * jnp.minimum(iteration / total, 1.0),
    "exponential": lambda iteration, total: 0.3 * 0.99**iteration,
    "several": lambda iteration, total: {"a": iteration + 1, "b": jnp.cos(jnp.arange(3) * iteration / total)},
}


def _region(function):
    node = Node(
        "schedule", Op("schedule", "learn", function), (Ref(ITERATION), Ref(TOTAL)), RESULT, Source("", 0)
    )
    return Region([node], [Ref(ITERATION), Ref(TOTAL)], [RESULT], [])


def _values(part, iterations, total=1000):
    seed, index = jax.random.key_data(jax.random.key(0)), jnp.arange(4)
    for iteration in iterations:
        store = {ITERATION: np.int32(iteration), TOTAL: np.int32(total)}
        part.run(store, Clock(seed, index, np.array([iteration, total], np.int32)))
        yield store[RESULT]


@pytest.mark.parametrize("function", SCHEDULES.values(), ids=SCHEDULES)
def test_many_at_once_are_those_of_each_iteration(function):
    # In order, past the end of a block and of the run, and back, as after a restart.
    iterations = [*range(150), 990, 1010, 3]
    ahead = HostSchedules(_region(function), (ITERATION, TOTAL))
    alone = HostRegion(_region(function), _region(function).compile())
    for one, two in zip(_values(ahead, iterations), _values(alone, iterations), strict=True):
        assert jax.tree.structure(one) == jax.tree.structure(two)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two)):
            assert isinstance(a, np.ndarray)
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_what_needs_more_or_gives_much_is_computed_in_its_turn():
    def value(shape):
        return {RESULT: Value(RESULT, "x", jax.ShapeDtypeStruct(shape, np.float32), (None,))}

    region = _region(SCHEDULES["linear"])
    assert follows_from_counters(region, (ITERATION, TOTAL), value(()))
    assert not follows_from_counters(region, (ITERATION, TOTAL), value((1000,)))
    assert not follows_from_counters(region, (ITERATION, 7), value(()))
