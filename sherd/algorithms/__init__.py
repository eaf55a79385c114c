"""The built-in algorithms, one file each, written exactly as a user's would be.

In: handles. Out: an `Algorithm`. May import: errors, spaces, author, nn.
"""

from __future__ import annotations

import os

from sherd.author import Algorithm
from sherd.errors import UsageError, nearest
from sherd.imports import is_path, load_object

# Named as paths so that listing the algorithms imports none of them.
BUILT_IN: dict[str, str] = {
    "reinforce": "sherd.algorithms.reinforce:REINFORCE",
    "a2c": "sherd.algorithms.a2c:A2C",
    "impala": "sherd.algorithms.impala:IMPALA",
    "dqn": "sherd.algorithms.dqn:DQN",
    "ddpg": "sherd.algorithms.ddpg:DDPG",
    "td3": "sherd.algorithms.td3:TD3",
    "sac": "sherd.algorithms.sac:SAC",
    "ppo": "sherd.algorithms.ppo:PPO",
}


def load_algorithm(name: str) -> type[Algorithm]:
    """The algorithm class of that name, or at `module:Class`.

    >>> load_algorithm("ppo").__name__
    'PPO'
    """
    path = name if is_path(name) else BUILT_IN.get(name.lower())
    if path is None:
        module = name.removesuffix(".py")
        own = f"{module}:MyAlgorithm" if os.path.exists(f"{module}.py") else "my_module:MyAlgorithm"
        raise UsageError(
            f"unknown algorithm {name!r}: {nearest(name, BUILT_IN)}\n"
            f"  fix: name a built-in one, or your own as {own}"
        )
    found = load_object(path)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise UsageError(f"{name} is not an Algorithm\n  fix: subclass sherd.Algorithm")
    if "__dataclass_params__" not in vars(found) or not found.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UsageError(f"{name} is not a frozen dataclass\n  fix: put @dataclass(frozen=True) above it")
    return found


def name_of(algorithm: Algorithm) -> str:
    """The name under which an algorithm can be loaded again."""
    kind = type(algorithm)
    path = f"{kind.__module__}:{kind.__qualname__}"
    return next((name for name, built_in in BUILT_IN.items() if built_in == path), path)
