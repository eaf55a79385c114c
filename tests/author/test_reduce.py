"""Reductions over two emulated devices equal those over the whole batch."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from sherd.author import reduce

SHARDED = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from sherd.author import reduce
from sherd.nn import statistics

assert jax.device_count() == 2
mesh = Mesh(np.array(jax.devices()), ("learners",))
check_vma = sys.argv[1] == "True"
rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(5, 4, 3)) * np.arange(1, 5)[:, None] + 100, jnp.float32)
scalars = x[..., 0]
ended = jnp.asarray(rng.random((5, 4)) < 0.3)
weights = jnp.arange(1.0, 4.0)
start = statistics.initial_moments(jnp.zeros(3))
scalar = statistics.initial_moments(jnp.zeros(()))

def loss(w, x):
    return reduce.mean(jnp.tanh(x * w / 100)) ** 2

def replicated(x, scalars, ended, w):
    _, scale, _ = statistics.scale_rewards(scalar, scalars[0] * 0, scalars, ended, 0.9)
    gradient = jax.grad(loss)(w, x)
    if sharding:
        gradient = jax.lax.pmean(gradient, "learners")
    total = jnp.float32(reduce.count(10))
    return (reduce.mean(x), reduce.mean(x, (0, 1)), reduce.moments(x), reduce.moments(x, (0, 1)), total,
            statistics.update_moments(start, x), scale, gradient)

def split(x):
    return reduce.standardise(x)

def many(function):
    def body(*args):
        with reduce.replicas("learners"):
            return function(*args)
    return body

sharding = False
expected = replicated(x, scalars, ended, weights)
sharding = True
env = P(None, "learners")
found = jax.jit(jax.shard_map(many(replicated), mesh=mesh, in_specs=(env, env, env, P()), out_specs=P(),
                              check_vma=check_vma))(x, scalars, ended, weights)
for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
    print(a.shape, np.ravel(a)[:3], np.ravel(b)[:3])
assert found[4] == 2 * expected[4] == 20
rest = lambda tree: jax.tree.leaves(tree[:4] + tree[5:])
for a, b in zip(rest(expected), rest(found)):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)
assert expected[5].count == 20 == found[5].count

call = jax.jit(jax.shard_map(many(split), mesh=mesh, in_specs=env, out_specs=env, check_vma=check_vma))
assert call.lower(x).as_text().count("stablehlo.all_reduce") == 1, "a message costs more than its bytes"
kept = call(x)
np.testing.assert_allclose(split(x), kept, rtol=1e-4, atol=1e-5)
local = jax.shard_map(split, mesh=mesh, in_specs=env, out_specs=env)(x)
assert not np.allclose(local, kept, atol=0.01), "without replicas() each shard must see only itself"

cached = jax.jit(lambda x: reduce.mean(x))
whole = cached(x[:, :2])
inside = jax.shard_map(many(cached), mesh=mesh, in_specs=env, out_specs=P(), check_vma=check_vma)(x)
np.testing.assert_allclose(inside, x.mean(), rtol=1e-6)
assert whole != inside
print("sharded equals whole")
"""


@pytest.mark.parametrize("check_vma", ["True", "False"])
def test_two_devices_reduce_as_one(check_vma: str) -> None:
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", SHARDED, check_vma],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sharded equals whole" in done.stdout


def test_moments_match_numpy_far_from_zero() -> None:
    x = np.random.default_rng(1).normal(5000, 0.5, (40, 6, 2)).astype(np.float32)
    mean, variance = reduce.moments(jnp.asarray(x), (0, 1))
    np.testing.assert_allclose(mean, x.mean((0, 1), dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(variance, x.var((0, 1), dtype=np.float64), rtol=1e-3)


def test_standardise_keeps_gradients_of_the_elements_only() -> None:
    import jax

    x = jnp.array([1.0, 2.0, 4.0])
    gradient = jax.grad(lambda x: reduce.standardise(x)[0])(x)
    np.testing.assert_allclose(gradient, [1 / np.std(x), 0, 0], rtol=1e-5)


def test_replicas_are_forgotten_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), reduce.replicas("lost"):
        _ = 1 / 0
    assert reduce.mean(jnp.array([2.0, 4.0])) == 3.0
