"""Separate Gymnasium environments in a batch: the same numbers as stepping Gymnasium by hand."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sherd.envs import make_host
from sherd.envs.host.gymnasium import LoopEnv, make_one
from sherd.envs.host.seeding import env_seeds
from sherd.errors import RunError, UsageError
from sherd.spaces import step_buffers, tree_map


def loop(env_id, num_envs, seed, first_index=0):
    return LoopEnv(env_id, lambda: make_one(env_id), num_envs, seed, first_index)


def rows(tree, row):
    return tree_map(lambda leaf: leaf[row].copy(), tree)


def same(one, other):
    if isinstance(one, dict):
        return all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return all(same(*pair) for pair in zip(one, other))
    return np.array_equal(np.asarray(one), np.asarray(other))


def carried(value):
    """Gymnasium's value in the dtypes in which Sherd carries it."""
    return tree_map(
        lambda leaf: np.asarray(leaf, np.float32 if np.asarray(leaf).dtype.kind == "f" else np.int32), value
    )


@pytest.mark.parametrize(
    ("env_id", "steps"), [("CartPole-v1", 120), ("Pendulum-v1", 420), ("Taxi-v4", 420), ("Blackjack-v1", 60)]
)
def test_the_numbers_are_gymnasiums(env_id, steps):
    batch = loop(env_id, 3, seed=5, first_index=2)
    direct = [gymnasium.make(env_id, disable_env_checker=True) for _ in range(3)]
    out = step_buffers(batch.spec, 3)
    batch.reset(out.obs)
    for row, env in enumerate(direct):
        assert same(rows(out.obs, row), carried(env.reset(seed=env_seeds(5, 2, 3)[row])[0]))
    space = batch.spec.action
    space.seed(0)
    ends = 0
    for _ in range(steps):
        actions = [space.sample() for _ in range(3)]
        batch.step(np.stack(actions), out)
        for row, env in enumerate(direct):
            final, reward, terminated, truncated, _ = env.step(actions[row])
            assert same(rows(out.next_obs, row), carried(final))
            assert out.reward[row] == np.float32(reward)
            assert (out.terminated[row], out.truncated[row]) == (terminated, truncated)
            if terminated or truncated:
                ends += 1
                final, _ = env.reset()
            assert same(rows(out.obs, row), carried(final))
    assert ends >= 3


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Blackjack-v1"])
def test_splitting_a_batch_changes_nothing(env_id):
    whole = loop(env_id, 6, seed=1)
    parts = [loop(env_id, 3, seed=1), loop(env_id, 3, seed=1, first_index=3)]
    outs = [step_buffers(whole.spec, 6), step_buffers(whole.spec, 3), step_buffers(whole.spec, 3)]
    for batch, out in zip([whole, *parts], outs):
        batch.reset(out.obs)
    assert not same(rows(outs[0].obs, 0), rows(outs[0].obs, 5))
    generator = np.random.default_rng(0)
    for _ in range(60):
        action = generator.integers(0, 2, 6).astype(np.int32)
        whole.step(action, outs[0])
        parts[0].step(action[:3], outs[1])
        parts[1].step(action[3:], outs[2])
        for field in ("obs", "next_obs", "reward", "terminated", "truncated"):
            joined = tree_map(
                lambda a, b: np.concatenate([a, b]), getattr(outs[1], field), getattr(outs[2], field)
            )
            assert same(getattr(outs[0], field), joined), field


class Nested(gymnasium.Env):
    """Shows the action that it was given, in every kind of space, with offsets."""

    observation_space = spaces.Dict(
        {
            "level": spaces.Discrete(5, start=10),
            "pair": spaces.Tuple(
                [spaces.MultiDiscrete([3, 4], start=[1, -2]), spaces.Box(-9, 9, (2, 2), np.float64)]
            ),
            "bits": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Dict(
        {
            "move": spaces.Discrete(3, start=-1),
            "knobs": spaces.Tuple(
                [spaces.MultiDiscrete([2, 2], start=[5, 5]), spaces.Box(-1, 1, (2,), np.float64)]
            ),
            "lamps": spaces.MultiBinary(3),
        }
    )

    def _observe(self, level, multi, box, bits):
        return {
            "level": np.int64(level),
            "pair": (np.asarray(multi), np.full((2, 2), box, np.float64)),
            "bits": bits,
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observe(10, [1, -2], 0.5, np.zeros(3, np.int8)), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        knobs, dial = action["knobs"]
        seen = self._observe(12 + action["move"], knobs - 4, dial[0], action["lamps"])
        return seen, 1, False, self.count == 2, {}


def test_nested_spaces_dtypes_and_offsets():
    batch = make_host(Nested, 2, seed=0)
    out = step_buffers(batch.spec, 2)
    batch.reset(out.obs)
    assert out.obs["level"].tolist() == [0, 0]
    assert out.obs["pair"][0].tolist() == [[0, 0], [0, 0]]
    action = {
        "move": np.array([0, 2], np.int32),
        "knobs": (np.array([[0, 1], [1, 0]], np.int32), np.array([[0.25, 0], [-0.5, 0]], np.float32)),
        "lamps": np.array([[0, 1, 0], [1, 1, 1]], np.int8),
    }
    batch.step(action, out)
    assert out.next_obs["level"].tolist() == [1, 3]
    assert out.next_obs["level"].dtype == np.int32
    assert out.next_obs["pair"][0].tolist() == [[0, 4], [1, 3]]
    assert out.next_obs["pair"][1].dtype == np.float32
    assert out.next_obs["pair"][1][:, 0, 0].tolist() == [0.25, -0.5]
    assert out.next_obs["bits"].tolist() == [[0, 1, 0], [1, 1, 1]]
    batch.step(action, out)
    assert out.truncated.all()
    assert not out.terminated.any()
    assert out.next_obs["level"].tolist() == [1, 3]
    assert out.obs["level"].tolist() == [0, 0]


class Breaks(Nested):
    def step(self, action):
        return {}["no such key"]


class WrongShape(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}


def test_a_users_exception_names_the_environment_and_the_line():
    batch = make_host(Breaks, 2, seed=0, first_index=7)
    out = step_buffers(batch.spec, 2)
    batch.reset(out.obs)
    action = {
        "move": np.zeros(2, np.int32),
        "knobs": (np.zeros((2, 2), np.int32), np.zeros((2, 2), np.float32)),
        "lamps": np.zeros((2, 3), np.int8),
    }
    with pytest.raises(RunError, match=r"Breaks: environment 7 failed in step: KeyError") as caught:
        batch.step(action, out)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "test_host_loop.py" in str(caught.value)


def test_an_observation_that_would_be_stretched_is_an_error():
    batch = make_host(WrongShape, 1, seed=0)
    with pytest.raises(RunError, match=r"shape \(1,\), its space says \(3,\)"):
        batch.reset(step_buffers(batch.spec, 1).obs)


def test_mujoco_without_a_warning(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batch = make_host("HalfCheetah-v5", 2, seed=0)
        out = step_buffers(batch.spec, 2)
        batch.reset(out.obs)
        batch.step(np.full((2, 6), 0.5, np.float32), out)
    assert out.obs.dtype == np.float32
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    direct = gymnasium.make("HalfCheetah-v5", disable_env_checker=True)
    direct.reset(seed=env_seeds(0, 0, 1)[0])
    expected = direct.step(np.full(6, 0.5, np.float32))
    np.testing.assert_array_equal(out.next_obs[0], expected[0].astype(np.float32))
    assert out.reward[0] == np.float32(expected[1])


def test_options_reach_the_environment_or_are_refused():
    batch = make_host("Pendulum-v1", 1, seed=0, g=0.0)
    assert batch._envs[0].unwrapped.g == 0.0
    with pytest.raises(UsageError, match="does not take these options"):
        make_host("Pendulum-v1", 1, seed=0, gravity=0.0)
