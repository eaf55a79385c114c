"""Acting with packed arguments: the same numbers as with plain ones, in fewer arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.algorithms.ppo import PPO
from sherd.envs import describe, make_host
from sherd.graph import trace
from sherd.graph.ir import Ref, Value
from sherd.lower.begin import begin_host_program
from sherd.lower.host import Setting
from sherd.lower.packed import PackedRegion
from sherd.lower.packing import Constants, Layout, Results
from sherd.lower.parts import HostRegion
from sherd.lower.scopes import HostScope
from sherd.lower.share import Share
from sherd.policies.project import whole_cells

ENVS = 4


def program(algorithm, env):
    graph = trace(algorithm, describe(env), ENVS)
    setting = Setting(3, 10, Share.of_replica(ENVS), make_host(env, ENVS, 3))
    return begin_host_program(graph, whole_cells(graph), algorithm, setting)


def in_loops(made):
    """The parts of all loops that the host walks."""
    return [inner for part in made._parts if isinstance(part, HostScope) for inner in part.parts]


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        (PPO(horizon=5, network="gru", memory_units=16, epochs=1, minibatches=1), "CartPole-v1"),
        # One layer is too large to pack.
        (PPO(horizon=5, hidden=(128, 128), epochs=1, minibatches=1), "Pendulum-v1"),
    ],
    ids=["memory", "wide"],
)
def test_numbers_are_those_of_the_plain_region(algorithm, env, monkeypatch):
    packed = program(algorithm, env)
    monkeypatch.setattr("sherd.lower.host.only_acts", lambda region: False)
    plain = program(algorithm, env)
    assert isinstance(in_loops(packed)[0], PackedRegion)
    assert isinstance(in_loops(plain)[0], HostRegion)
    assert packed.run(3) == plain.run(3)
    for one, other in zip(jax.tree.leaves(packed.cells), jax.tree.leaves(plain.cells)):
        if not jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_a_small_network_goes_in_as_one_array_and_comes_out_as_one():
    made = program(PPO(horizon=5, hidden=(16,), minibatches=1), "CartPole-v1")
    made.run(1)
    acting = in_loops(made)[0]
    words, large = acting._given
    assert words.ndim == 1
    assert not large
    assert not acting._results.apart


def test_matrices_stay_apart():
    """Each would need a kernel to be unpacked, and XLA gives another thread a part of many kernels."""
    made = program(PPO(horizon=5, hidden=(64, 64), minibatches=1), "CartPole-v1")
    made.run(1)
    _, large = in_loops(made)[0]._given
    # Two networks of two layers; first layers of 4 x 64 just fit the vector.
    assert [leaf.shape for leaf in large] == [(64, 64), (64, 64)]


def test_bits_survive():
    arrays = [
        np.array([[np.nan, -0.0], [np.inf, 1e-42]], np.float32),
        np.array(-7, np.int32),
        np.array([2**32 - 1, 5], np.uint32),
    ]
    layout = Layout(tuple(a.shape for a in arrays), tuple(a.dtype for a in arrays))
    words = np.asarray(jax.jit(layout.pack)(arrays))
    assert words.shape == (layout.size,) == (7,)
    for array, back, view in zip(arrays, jax.jit(layout.unpack)(words), layout.views(words)):
        assert np.asarray(back).tobytes() == array.tobytes() == view.tobytes()
        assert np.asarray(back).shape == view.shape == array.shape
        assert np.shares_memory(view, words)


def test_what_is_large_or_odd_stays_apart():
    constants = Constants([Ref(0), Ref(1)])
    store = {0: {"small": jnp.ones(3), "large": jnp.ones(10_000)}, 1: np.array([True, False])}
    words, large = constants.pack(store, np.int32(4))
    assert words.shape == (4,)
    assert [leaf.size for leaf in large] == [10_000, 2]
    known, (more,) = constants.unpack(words, large)
    assert known[Ref(0)]["small"].tolist() == [1, 1, 1]
    assert known[Ref(1)].tolist() == [True, False]
    assert int(more) == 4

    def value(number, *shape, dtype="float32", axis=0):
        return Value(number, "", jax.ShapeDtypeStruct(shape, dtype), (axis,))

    values = {
        0: value(0, 8, 6),
        1: value(1, 8, dtype="bool"),
        2: value(2, 8, 999),
        3: value(3, 5, axis=None),
        4: value(4, 8, 2),
    }
    results = Results(range(5), values, rows=2, apart=[Ref(4)])
    assert results.apart == [1, 2, 3, 4]
    assert results.layout.shapes == ((2, 6),)  # of two rows, whatever the whole graph has
