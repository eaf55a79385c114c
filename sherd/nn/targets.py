"""Target networks: parameters that follow others slowly."""

from __future__ import annotations

from typing import Any

import jax


def polyak(target: Any, params: Any, tau: float | jax.Array) -> Any:
    """The target, moved by the share `tau` of the way to the parameters.

    >>> polyak({"w": 0.0}, {"w": 4.0}, 0.25)
    {'w': 1.0}
    """
    return jax.tree.map(lambda old, new: (1 - tau) * old + tau * new, target, params)
