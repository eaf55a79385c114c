"""What the tests of networks share."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest


@pytest.fixture
def filled() -> Callable[[Callable[..., Any]], Any]:
    """Parameters shaped like those that an `init` gives, without the time it takes to compile one."""

    def fill(init: Callable[..., Any]) -> Any:
        rng = np.random.default_rng(0)

        def leaf(shape: jax.ShapeDtypeStruct) -> jax.Array:
            return jax.device_put(rng.normal(0, 0.5, shape.shape).astype(shape.dtype))

        return jax.tree.map(leaf, jax.eval_shape(init, jax.random.key(0)))

    return fill
