"""PopArt against RLax, against float64 formulas where float32 would cancel, and what it preserves."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from sherd.author import reduce
from sherd.nn.heads import head, linear
from sherd.nn.popart import Scale, denormalise, initial_scale, normalise, rescale_head, update_scale


def batches(mean: float, deviation: float, count: int = 6) -> np.ndarray:
    return np.random.default_rng(0).normal(mean, deviation, (count, 5, 4)).astype(np.float32)


def test_statistics_and_head_equal_rlax() -> None:
    step = 0.1
    params = head(jax.random.key(0), 3, 1, scale=1.0)
    # RLax adds up the updates of all targets, where ours averages them.
    initial, update = rlax.popart(1, step / 20, 1e-4, 1e6)
    update = jax.jit(update)
    reference, theirs = initial(), {"w": params["kernel"], "b": params["bias"]}
    scale = initial_scale()
    for targets in batches(3.0, 2.0):
        theirs, reference = update(theirs, reference, targets, jnp.zeros(targets.shape, jnp.int32))
        newer = update_scale(scale, jnp.asarray(targets), step, debias=False)
        params, scale = rescale_head(params, scale, newer), newer
        np.testing.assert_allclose(scale.mean, reference.shift[0], rtol=1e-4)
        np.testing.assert_allclose(scale.std, reference.scale[0], rtol=1e-4)
        np.testing.assert_allclose(params["kernel"], theirs["w"], rtol=1e-4)
        np.testing.assert_allclose(params["bias"], theirs["b"], rtol=1e-4, atol=1e-5)


def test_the_first_updates_are_plain_averages() -> None:
    seen, scale = batches(1e4, 3.0), initial_scale()
    for targets in seen:
        scale = update_scale(scale, jnp.asarray(targets), step=1 / 6)
    assert scale.updates == 6
    np.testing.assert_allclose(scale.mean, seen.astype(np.float64).mean(), rtol=1e-6)
    # The running second moment less the squared mean, in float32, would give nothing like this.
    np.testing.assert_allclose(scale.std, seen.astype(np.float64).std(), rtol=1e-3)
    later = update_scale(scale, jnp.full((5, 4), 1e4 + 60), step=1 / 6)
    np.testing.assert_allclose(later.mean - scale.mean, (1e4 + 60 - scale.mean) / 6, rtol=1e-2)


def test_outputs_are_preserved_and_targets_normalised() -> None:
    rng = np.random.default_rng(1)
    params, x = head(jax.random.key(0), 8, 1, scale=1.0), jnp.asarray(rng.normal(size=(7, 8)), jnp.float32)
    old, targets = Scale(jnp.array(3), jnp.array(-2.0), jnp.array(0.5)), jnp.asarray(batches(50.0, 9.0)[0])
    new = update_scale(old, targets, step=1.0)
    before = denormalise(old, linear(params, x))
    after = denormalise(new, linear(rescale_head(params, old, new), x))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)
    assert np.abs(linear(params, x) - linear(rescale_head(params, old, new), x)).max() > 0.1
    normal = normalise(new, targets)
    np.testing.assert_allclose([normal.mean(), normal.std()], [0, 1], atol=1e-4)
    np.testing.assert_allclose(denormalise(new, normal), targets, rtol=1e-5)


def test_equal_targets_leave_a_deviation_to_divide_by() -> None:
    scale = update_scale(initial_scale(), jnp.full((5, 4), 7.0))
    assert np.isfinite(normalise(scale, jnp.array(7.1)))
    assert scale.std > 0


def test_replicas_agree_with_the_whole() -> None:
    targets = jnp.asarray(batches(3.0, 2.0)[0])

    def shard(part):
        with reduce.replicas("learners"):
            return update_scale(initial_scale(), part)

    shards = jax.vmap(shard, axis_name="learners")(jnp.stack(jnp.split(targets, 2, axis=1)))
    whole = update_scale(initial_scale(), targets)
    for found, expected in zip(shards, whole):
        np.testing.assert_allclose(found, np.stack([expected, expected]), rtol=1e-6)
