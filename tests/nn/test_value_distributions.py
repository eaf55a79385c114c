"""The categorical projection against RLax and against the algorithm as the C51 paper prints it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from sherd.errors import UsageError
from sherd.nn.value_distributions import cross_entropy, mean, project, support

ATOMS, ROWS = 11, 30


def targets() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The support, moved values that reach beyond it, and their probabilities."""
    rng = np.random.default_rng(0)
    atoms = support(-3.0, 5.0, ATOMS)
    reward, factor = rng.normal(0, 2, (ROWS, 1)), rng.choice([0.0, 0.5, 0.99], (ROWS, 1))
    moved = (reward + factor * atoms).astype(np.float32)
    assert (moved < -3).any()
    assert (moved > 5).any()
    weights = rng.random((ROWS, ATOMS)).astype(np.float32)
    return atoms, moved, weights / weights.sum(-1, keepdims=True)


def test_projection_equals_rlax() -> None:
    atoms, moved, probabilities = targets()
    expected = jax.vmap(rlax.categorical_l2_project, (0, 0, None))(
        jnp.asarray(moved), jnp.asarray(probabilities), jnp.asarray(atoms)
    )
    np.testing.assert_allclose(project(moved, probabilities, atoms), expected, rtol=1e-4, atol=1e-6)


def test_projection_equals_algorithm_1_of_the_paper() -> None:
    atoms, moved, probabilities = targets()
    spacing, expected = (5.0 + 3.0) / (ATOMS - 1), np.zeros((ROWS, ATOMS))
    for row, j in np.ndindex(ROWS, ATOMS):
        place = (np.clip(float(moved[row, j]), -3.0, 5.0) + 3.0) / spacing
        lower, upper = int(np.floor(place)), int(np.ceil(place))
        if lower == upper:
            expected[row, lower] += probabilities[row, j]
        else:
            expected[row, lower] += probabilities[row, j] * (upper - place)
            expected[row, upper] += probabilities[row, j] * (place - lower)
    np.testing.assert_allclose(project(moved, probabilities, atoms), expected, rtol=1e-4, atol=1e-5)


def test_projection_keeps_mass_and_the_mean_within_the_support() -> None:
    atoms, moved, probabilities = targets()
    found = np.asarray(project(moved.reshape(5, 6, ATOMS), probabilities.reshape(5, 6, ATOMS), atoms))
    assert found.shape == (5, 6, ATOMS)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    expected = (np.clip(moved, -3, 5) * probabilities).sum(-1).reshape(5, 6)
    np.testing.assert_allclose((found * atoms).sum(-1), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean(np.log(found + 1e-30), atoms), expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_least_at_the_target_which_it_does_not_move() -> None:
    rng = np.random.default_rng(1)
    logits = jnp.asarray(rng.normal(size=(4, ATOMS)), jnp.float32)
    target = jax.nn.softmax(jnp.asarray(rng.normal(size=(4, ATOMS)), jnp.float32))
    expected = -np.sum(target * np.log(jax.nn.softmax(logits)), axis=-1)
    np.testing.assert_allclose(cross_entropy(logits, target), expected, rtol=1e-5)
    slope = jax.grad(lambda x: cross_entropy(x, target).sum())
    np.testing.assert_allclose(slope(jnp.log(target)), 0, atol=1e-6)
    assert np.abs(slope(logits)).max() > 0.01
    np.testing.assert_array_equal(jax.grad(lambda x: cross_entropy(logits, x).sum())(target), 0)


@pytest.mark.parametrize(("low", "high", "atoms"), [(0.0, 1.0, 1), (1.0, 1.0, 5)])
def test_an_impossible_support_is_refused(low: float, high: float, atoms: int) -> None:
    with pytest.raises(UsageError, match="two atoms or more"):
        support(low, high, atoms)
