"""Environments that are wrong in one way each, and what `check_env` says of them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sherd.envs import check_env, describe
from sherd.envs.host.faulty_batch import batch_faults
from sherd.envs.host.gymnasium import LoopEnv
from sherd.errors import RunError
from sherd.spaces import EnvSpec


class Sound(gymnasium.Env):
    """A random walk with nested observations; every faulty environment below spoils one thing of it."""

    observation_space = spaces.Dict(
        {"place": spaces.Tuple([spaces.Box(-50, 50, (2,)), spaces.Discrete(40)]), "on": spaces.MultiBinary(2)}
    )
    action_space = spaces.Discrete(3)
    length = 12

    def observe(self):
        on = np.array([self.count % 2, 1], np.int8)
        return {"place": (self.position.astype(np.float32), self.count), "on": on}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.position = self.np_random.uniform(-1, 1, 2)
        return self.observe(), {}

    def step(self, action):
        self.count += 1
        self.position = self.position + self.np_random.uniform(-1, 1, 2) + action
        return self.observe(), float(action), self.count >= self.length, False, {}


class Wrong:
    """One class per fault, so that a test names what it spoils."""

    class DoubleLeaf(Sound):
        def observe(self):
            return super().observe() | {"place": (self.position, self.count)}

    class OutsideLeaf(Sound):
        def observe(self):
            return super().observe() | {"place": (self.position.astype(np.float32), self.count + 35)}

    class ShapeLeaf(Sound):
        def observe(self):
            return super().observe() | {"on": np.zeros(3, np.int8)}

    class MissingLeaf(Sound):
        def observe(self):
            return {"place": super().observe()["place"]}

    class ExtraLeaf(Sound):
        def observe(self):
            return super().observe() | {"more": 1}

    class NotFinite(Sound):
        def observe(self):
            bad = np.array([0, np.nan if self.count == 5 else 0], np.float32)
            return super().observe() | {"place": (bad, self.count)}

    class RewardNotFinite(Sound):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, float("nan"), *rest

    class RewardArray(Sound):
        def step(self, action):
            seen, reward, *rest = super().step(action)
            return seen, np.array([reward]), *rest

    class Flag(Sound):
        def step(self, action):
            seen, reward, terminated, _, info = super().step(action)
            return seen, reward, int(terminated), False, info

    class FlagNone(Sound):
        def step(self, action):
            seen, reward, terminated, _, info = super().step(action)
            return seen, reward, terminated, None, info

    class NoFinal(Sound):
        def step(self, action):
            seen, reward, terminated, *rest = super().step(action)
            return None if terminated else seen, reward, terminated, *rest

    class ResetsItself(Sound):
        def step(self, action):
            seen, reward, terminated, *rest = super().step(action)
            return self.reset()[0] if terminated else seen, reward, terminated, *rest

    class HidesFinal(Sound):
        def step(self, action):
            seen, reward, terminated, truncated, _ = super().step(action)
            info = {"terminal_observation": seen} if terminated else {}
            return seen, reward, terminated, truncated, info

    class Unseeded(Sound):
        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.position = np.random.uniform(-1, 1, 2)
            return self.observe(), {}

    class UnseededStep(Sound):
        def step(self, action):
            seen, _, *rest = super().step(action)
            return seen, float(np.random.uniform()), *rest

    class OldReset(Sound):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    class OldStep(Sound):
        def step(self, action):
            seen, reward, terminated, _, info = super().step(action)
            return seen, reward, terminated, info

    class RaisesInStep(Sound):
        def step(self, action):
            return 1 / (3 - self.count) if self.count == 3 else super().step(action)

    class RaisesInReset(Sound):
        def reset(self, *, seed=None, options=None):
            raise RuntimeError("no level file")

    class RaisesWhenMade(Sound):
        def __init__(self):
            raise OSError("no display")


EXPECTED = [
    (Wrong.DoubleLeaf, "place/0", "dtype float64, its space says float32"),
    (Wrong.OutsideLeaf, "place/1", "outside Discrete(40)"),
    (Wrong.ShapeLeaf, "on", "has shape (3,), its space says (2,)"),
    (Wrong.MissingLeaf, "on", "is missing"),
    (Wrong.ExtraLeaf, "more", "is not in the space"),
    (Wrong.NotFinite, "place/0", "holds nan"),
    (Wrong.RewardNotFinite, "reward", "the reward is nan"),
    (Wrong.RewardArray, "reward", "not a number"),
    (Wrong.Flag, "terminated", "not a bool"),
    (Wrong.FlagNone, "truncated", "not a bool"),
    (Wrong.NoFinal, "", "the observation is None, not a dict (final observation, step 12 of episode 1)"),
    (Wrong.ResetsItself, "", "the final one is lost"),
    (Wrong.HidesFinal, "", "only in info['terminal_observation']"),
    (Wrong.Unseeded, "place/0", "differs after reset with the same seed"),
    (Wrong.UnseededStep, "reward", "differs at step 1 with the same seed and actions"),
    (Wrong.OldReset, "", "reset did not return (observation, info)"),
    (Wrong.OldStep, "", "step returned 4 values, not five values"),
    (Wrong.RaisesInStep, "", "step raised ZeroDivisionError"),
    (Wrong.RaisesInReset, "", "reset raised RuntimeError: no level file"),
    (Wrong.RaisesWhenMade, "", "OSError: no display"),
]


@pytest.mark.parametrize(
    ("env", "leaf", "what"), EXPECTED, ids=lambda value: getattr(value, "__name__", None)
)
def test_each_fault_is_named_alone(env, leaf, what):
    problems = check_env(env, steps=100)
    assert [problem.leaf for problem in problems] == [leaf], problems
    assert what in problems[0].what
    assert problems[0].fix


def test_an_exception_is_traced_to_the_users_line():
    (problem,) = check_env(Wrong.RaisesInStep)
    assert "test_check.py:" in problem.fix
    assert "1 / (3 - self.count)" in problem.fix


class NoLicence(Sound):
    def __init__(self):
        raise RuntimeError("no licence")


def test_a_constructor_that_raises_is_not_sent_to_the_command_that_found_it():
    (problem,) = check_env(NoLicence)
    assert "failed in its constructor: RuntimeError: no licence" in problem.what
    assert str(problem).count("fix:") == 1
    with pytest.raises(RunError, match=r"\n  fix: mend the constructor"):
        describe(NoLicence)


class Masked(gymnasium.Env):
    """Only the actions that the mask allows may be taken."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict({"x": spaces.Box(0, 99, (1,)), "action_mask": spaces.MultiBinary(3)})

    def mask(self):
        return np.array([0, 1, self.count % 2], np.int8)

    def observe(self):
        return {"x": np.full(1, self.count, np.float32), "action_mask": self.mask()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        if not self.mask()[action]:
            raise ValueError("illegal action")
        self.count += 1
        return self.observe(), 0.0, self.count == 9, False, {}


class EmptyMask(Masked):
    def mask(self):
        return np.array([0, 1, 0] if self.count < 4 else [0, 0, 0], np.int8)

    def step(self, action):
        self.count += 1
        return self.observe(), 0.0, self.count == 9, False, {}


class EmptyAtTheEnd(Masked):
    def mask(self):
        return np.array([0, 1, 0] if self.count < 9 else [0, 0, 0], np.int8)


class ShortMask(Masked):
    observation_space = spaces.Dict({"x": spaces.Box(0, 99, (1,)), "action_mask": spaces.MultiBinary(2)})

    def mask(self):
        return np.ones(2, np.int8)

    def step(self, action):
        self.count += 1
        return self.observe(), 0.0, self.count == 9, False, {}


def test_masks():
    assert check_env(Masked, steps=60) == []
    assert check_env(EmptyAtTheEnd, steps=60) == []
    (empty,) = check_env(EmptyMask, steps=60)
    assert (empty.leaf, "all zero" in empty.what) == ("action_mask", True)
    (short,) = check_env(ShortMask, steps=60)
    assert (short.leaf, "2 entries for 3 actions" in short.what) == ("action_mask", True)


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Pendulum-v1", "Taxi-v4", "Blackjack-v1", "FrozenLake-v1", "CliffWalking-v1"]
)
def test_gymnasiums_own_are_sound(env_id):
    assert check_env(env_id, steps=300) == []


def test_batched_sources_are_sound():
    assert check_env(Sound) == []
    assert check_env("envpool/CartPole-v1", steps=100) == []
    assert check_env("ALE/Pong-v5", steps=20) == []


def test_an_episode_without_end_is_only_a_note():
    class Endless(Sound):
        length = 10**9
        observation_space = spaces.Box(-1, 1, (1,))

        def observe(self):
            return np.zeros(1, np.float32)

    findings = check_env(Endless, steps=50)
    assert findings == []
    assert findings.notes == ["no episode ended within 50 steps"]


def test_a_batch_that_breaks_the_contract_is_caught():
    class KeepsFinal(LoopEnv):
        def step(self, action, out):
            super().step(action, out)
            out.obs["on"][:] = out.next_obs["on"]
            for target, source in zip(out.obs["place"], out.next_obs["place"]):
                target[:] = source

    class Stale(LoopEnv):
        def step(self, action, out):
            kept = out.obs["on"].copy()
            super().step(action, out)
            out.obs["on"][:] = kept

    assert list(batch_faults(LoopEnv("sound", Sound, 2, 0), 40, 0)) == []
    (fault,) = batch_faults(KeepsFinal("keeps", Sound, 2, 0), 40, 0)
    assert "kept their final observation" in fault.what
    assert {fault.leaf for fault in batch_faults(Stale("stale", Sound, 2, 0), 40, 0)} == {"on"}


class GraphWalk:
    """A sound graph environment, and by its switches three that are not."""

    def __init__(self, reward=0.0, high=9.0, integer_flag=False):
        self.spec = EnvSpec(
            "graph-walk", spaces.Dict({"x": spaces.Box(0, high, (1,))}), spaces.Discrete(2), "graph"
        )
        self.reward, self.integer_flag = reward, integer_flag

    def reset(self, key):
        import jax.numpy as jnp

        return jnp.zeros(1), {"x": jnp.zeros(1)}

    def step(self, key, state, action):
        import jax.numpy as jnp

        state = state + action
        ended = state[0] >= 9
        terminated = ended.astype(jnp.int32) if self.integer_flag else ended
        return state, {"x": state}, jnp.float32(self.reward), terminated, jnp.bool_(False)


def test_graph_environments_meet_the_same_checks():
    assert check_env(GraphWalk(), steps=60) == []
    assert check_env("graph/CartPole-v1", steps=60) == []
    assert [p.leaf for p in check_env(GraphWalk(reward=float("inf")), steps=60)] == ["reward"]
    assert [p.leaf for p in check_env(GraphWalk(high=4.0), steps=60)] == ["x"]
    assert [p.leaf for p in check_env(GraphWalk(integer_flag=True), steps=60)] == ["terminated"]
