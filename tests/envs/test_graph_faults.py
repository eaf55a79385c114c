"""What is wrong with a graph environment of one's own is said before training, with the leaf and the line."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from sherd import RunError, UsageError
from sherd.envs import check_env, describe
from sherd.spaces import EnvSpec

SPACE = spaces.Dict({"x": spaces.Box(0, 9, (1,), np.float32)})


class State(NamedTuple):
    x: Any
    time: Any


class Walk:
    """A sound environment, which is also as careless as is allowed: Python numbers, weak types."""

    spec = EnvSpec("walk", SPACE, spaces.Discrete(2), "graph")

    def reset(self, key):
        return State(jnp.zeros(1), 0), {"x": jnp.zeros(1)}

    def step(self, key, state, action):
        state = State(state.x + action, state.time + 1)
        return state, {"x": state.x}, 1, state.time > 8, False


class OtherShape(Walk):
    def reset(self, key):
        return State(jnp.zeros(1), 0), {"x": jnp.zeros(2)}


class OtherDtype(Walk):
    def step(self, key, state, action):
        state, _, *rest = super().step(key, state, action)
        return state, {"x": state.x.astype(jnp.int32)}, *rest


class NoLeaf(Walk):
    def step(self, key, state, action):
        state, _, *rest = super().step(key, state, action)
        return state, {"y": state.x}, *rest


class FourValues(Walk):
    def step(self, key, state, action):
        return super().step(key, state, action)[:4]


class StateChanges(Walk):
    def step(self, key, state, action):
        state, *rest = super().step(key, state, action)
        return state._replace(time=state.time + 0.5), *rest


class StateGrows(Walk):
    def step(self, key, state, action):
        state, *rest = super().step(key, state, action)
        return (*state, action), *rest


class LongReward(Walk):
    def step(self, key, state, action):
        state, seen, _, *flags = super().step(key, state, action)
        return state, seen, jnp.ones(1), *flags


class IntegerFlag(Walk):
    def step(self, key, state, action):
        *rest, truncated = super().step(key, state, action)
        return *rest, int(truncated)


class Undecided(Walk):
    def step(self, key, state, action):
        assert action > 0
        return super().step(key, state, action)


FAULTS = [
    (OtherShape, "reset", "x", r"leaf 'x' has shape \(2,\), its space says \(1,\)"),
    (OtherDtype, "step", "x", "leaf 'x' has dtype int32, its space says float32"),
    (NoLeaf, "step", "x", "leaf 'x' is missing"),
    (FourValues, "step", "", "it returns 4 values, not 5"),
    (StateChanges, "step", "state.time", "state.time is float32 of shape .*reset returns it as int32"),
    (StateGrows, "step", "state", "the state is built otherwise"),
    (LongReward, "step", "reward", r"the reward is float32 of shape \(1,\), not one number"),
    (IntegerFlag, "step", "truncated", r"truncated is int32 of shape \(\), not one bool"),
    (Undecided, "step", "", "a Python condition"),
]


@pytest.mark.parametrize("env", [Walk, Walk()])
def test_a_sound_one_is_taken(env):
    assert describe(env).kind == "graph"
    assert check_env(Walk(), steps=20) == []


@pytest.mark.parametrize(("env", "method", "leaf", "what"), FAULTS)
def test_a_fault_is_named_with_its_leaf_its_class_and_its_line(env, method, leaf, what):
    with pytest.raises(UsageError, match=what) as caught:
        describe(env)
    lines, start = inspect.getsourcelines(getattr(env, method))
    message = str(caught.value)
    assert message.startswith(f"{env.__name__}.{method}: ")
    assert any(f"{__file__}:{start + offset}\n" in message for offset in range(len(lines)))
    assert "\n  fix: " in message
    assert leaf in [problem.leaf for problem in check_env(env, steps=5)]


class Fragile(Walk):
    def __init__(self):
        raise RuntimeError("no licence")


def test_a_constructor_that_raises_is_named():
    with pytest.raises(RunError, match=r"Fragile: .* failed in its constructor: RuntimeError: no licence"):
        describe(Fragile)


def test_what_a_class_lacks_to_be_a_graph_environment_is_named():
    class Bare:
        reset, step = Walk.reset, Walk.step

    class Host(Walk):
        spec = EnvSpec("walk", SPACE, spaces.Discrete(2), "host")

    with pytest.raises(UsageError, match=r'it has no spec(.|\n)*kind="graph"'):
        describe(Bare)
    with pytest.raises(UsageError, match=r"the kind in its spec is 'host'(.|\n)*kind=\"graph\""):
        describe(Host)
