"""Value rescaling against RLax, and as a bijection over many sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from sherd.nn.transforms import rescale, unscale

SIZES = np.concatenate([[0.0], np.logspace(-6, 6, 60)])
VALUES = np.concatenate([-SIZES, SIZES]).astype(np.float32)


def test_both_equal_rlax() -> None:
    for epsilon in (1e-3, 1e-2):
        found = rescale(jnp.asarray(VALUES), epsilon)
        np.testing.assert_allclose(found, rlax.signed_hyperbolic(VALUES, epsilon), rtol=1e-5, atol=1e-6)
        # RLax's own form loses digits, so the comparison is of sizes where it keeps some.
        large = jnp.asarray(VALUES[np.abs(VALUES) > 1])
        expected = rlax.signed_parabolic(large, epsilon)
        np.testing.assert_allclose(unscale(large, epsilon), expected, rtol=2e-3)


def test_the_inverse_is_exact_from_the_smallest_to_the_largest() -> None:
    np.testing.assert_allclose(unscale(rescale(jnp.asarray(VALUES))), VALUES, rtol=3e-6)


def test_gradients_are_right_at_zero() -> None:
    np.testing.assert_allclose(jax.grad(rescale)(0.0), 0.5 + 1e-3, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(unscale)(0.0), 1 / (0.5 + 1e-3), rtol=1e-5)
