"""brax's environments as graph environments: ids `brax/ant`, `brax/inverted_pendulum`, ...

They run on brax's `spring` backend, the fastest to compile on a CPU and to step. 8 ants, one run on 2 cores,
to compile and for 200 steps: spring 8.7 s and 0.14 s, positional 12.6 s and 0.78 s, generalized 15.0 s and
0.53 s. Physics and returns differ between backends: compare returns with results of the same backend, which
`BraxEnv(name, backend=...)` chooses.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import RunError, UsageError, nearest
from sherd.spaces import EnvSpec

EPISODE_LENGTH = 1000


class State(NamedTuple):
    """Where an episode is: brax's own state and the number of steps taken."""

    brax: Any
    t: jax.Array


class BraxEnv:
    """A brax environment without brax's wrappers; episodes are truncated after 1,000 steps."""

    def __init__(self, name: str, backend: str = "spring", episode_length: int = EPISODE_LENGTH) -> None:
        with _quiet():
            self._env = _load(name, backend)
            start = jax.eval_shape(self._env.reset, jax.random.key(0))
        self._episode_length = episode_length
        observation = gym_spaces.Box(-np.inf, np.inf, start.obs.shape, np.float32)
        action = gym_spaces.Box(-1.0, 1.0, (self._env.action_size,), np.float32)
        self.spec = EnvSpec(f"brax/{name}", observation, action, "graph")

    def reset(self, key: Any) -> tuple[State, jax.Array]:
        """Start an episode: (state, observation)."""
        with _quiet():
            inner = self._env.reset(key)
        return State(inner, jnp.int32(0)), inner.obs

    def step(self, key: Any, state: State, action: jax.Array) -> tuple[State, jax.Array, Any, Any, Any]:
        """One step: (state, observation, reward, terminated, truncated); brax uses no key."""
        del key
        # A copy, because some of brax's environments write into the dicts of the state they are given.
        inner = jax.tree.map(lambda leaf: leaf, state.brax)
        with _quiet():
            inner = self._env.step(inner, action)
        t = state.t + 1
        reward, terminated = jnp.asarray(inner.reward, jnp.float32), jnp.asarray(inner.done) > 0.5
        return State(inner, t), inner.obs, reward, terminated, t >= self._episode_length


def _load(name: str, backend: str) -> Any:
    """brax's environment of this name."""
    from brax import envs
    from brax.io.mjcf import mujoco

    if name not in envs._envs:
        known = [f"brax/{known}" for known in envs._envs]
        raise UsageError(
            f"brax has no environment {name!r}; {nearest(f'brax/{name}', known)}\n"
            "  fix: use brax/ and a name that brax.envs.get_environment knows"
        )
    # MuJoCo's parser answers some of brax's models by writing a warning into a log file where the user works.
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        return envs.get_environment(name, backend=backend)
    except Exception as cause:
        raise RunError(
            f"brax could not load {name!r} with its backend {backend!r}: {cause}\n"
            "  fix: use another environment, or another backend by BraxEnv(name, backend=...)"
        ) from cause
    finally:
        mujoco.set_mju_user_warning(handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what brax says of itself while it is imported and traced: no user can act on it."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
