"""MinAtar's games, as Gymnasium environments stepped one after the other."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from sherd.envs import check_env, describe, make_host
from sherd.errors import UsageError
from sherd.spaces import step_buffers

pytest.importorskip("minatar")


def played(env_id, num_envs, seed, first_index=0, steps=150, **options):
    """What a batch gives when all its environments take the same actions."""
    batch = make_host(env_id, num_envs, seed, first_index, **options)
    out = step_buffers(batch.spec, num_envs)
    batch.reset(out.obs)
    seen = [(out.obs.copy(),)]
    for action in np.random.default_rng(0).integers(0, batch.spec.action.n, steps):
        batch.step(np.full(num_envs, action, np.int32), out)
        seen.append((out.obs.copy(), out.next_obs.copy(), out.reward.copy(), out.terminated.copy()))
    batch.close()
    return [np.stack(part) for part in zip(*seen[1:])], seen[0][0]


def test_spaces_and_names():
    spec = describe("MinAtar/Breakout-v1")
    assert spec.observation == gymnasium.spaces.Box(0, 1, (10, 10, 4), bool)
    assert spec.action == gymnasium.spaces.Discrete(3)
    assert describe("MinAtar/SpaceInvaders-v0").action == gymnasium.spaces.Discrete(6)
    with pytest.raises(UsageError, match="did you mean 'MinAtar/Seaquest-v1'"):
        describe("MinAtar/Seaqest-v1")
    with pytest.raises(UsageError, match="does not take these options"):
        make_host("MinAtar/Breakout-v1", 1, 0, stickiness=1)


def test_an_environment_depends_on_the_seed_and_its_number_alone():
    whole, first = played("MinAtar/Asterix-v1", 4, seed=3)
    again, _ = played("MinAtar/Asterix-v1", 4, seed=3)
    part, _ = played("MinAtar/Asterix-v1", 2, seed=3, first_index=2)
    other, _ = played("MinAtar/Asterix-v1", 4, seed=4)
    for one, same, half in zip(whole, again, part):
        np.testing.assert_array_equal(one, same)
        np.testing.assert_array_equal(one[:, 2:], half)
    assert (whole[0] != other[0]).any()
    assert (whole[0][:, 0] != whole[0][:, 1]).any()
    assert first.dtype == bool


def test_episodes_end_and_begin_again():
    (obs, next_obs, reward, terminated), first = played("MinAtar/Breakout-v1", 2, seed=0)
    assert terminated.sum() > 5
    assert reward.sum() > 0
    ball, paddle = 1, 0
    # Every episode begins with the ball in the fourth row and the paddle in the middle.
    for started in (first, obs[terminated]):
        assert started[:, 3, :, ball].any(1).all()
        assert started[:, 9, 4, paddle].all()
    assert next_obs[terminated][:, 9, :, ball].any(1).all()
    np.testing.assert_array_equal(obs[~terminated], next_obs[~terminated])


def test_sticky_actions_can_be_turned_off():
    steady, _ = played("MinAtar/Breakout-v1", 1, seed=0, sticky_action_prob=0.0)
    usual, _ = played("MinAtar/Breakout-v1", 1, seed=0)
    assert (steady[0] != usual[0]).any()


def test_the_contract_holds():
    assert not check_env("MinAtar/Breakout-v1", steps=200)


def test_frames_enter_a_network_as_numbers():
    import jax
    import jax.numpy as jnp

    from sherd.nn.q_network import q_network

    spec = describe("MinAtar/Breakout-v1")
    model = q_network(spec)
    params = model.init(jax.random.key(0))
    # Channels come last, and the kernel is small enough for a frame of ten by ten.
    assert jax.tree.leaves(params["torso"])[1].shape == (3, 3, 4, 16)
    frames = jax.random.bernoulli(jax.random.key(1), 0.2, (2, 10, 10, 4))
    values = model.q(model.outputs(params, frames))
    np.testing.assert_allclose(values, model.q(model.outputs(params, frames.astype(jnp.float32))))
    assert float(jnp.abs(values[0] - values[1]).max()) > 1e-3


def test_loading_is_quiet_and_leaves_the_logs_alone():
    code = (
        "import logging, sys; from sherd.envs.host import minatar; assert minatar.names()\n"
        "assert not logging.getLogger().handlers and not logging.getLogger().filters\n"
        "logging.basicConfig(); [sys.modules.pop(n) for n in list(sys.modules) if n[:7] == 'minatar']\n"
        "assert minatar.names() and not {'jax', 'matplotlib', 'seaborn'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_package_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "minatar"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(UsageError, match=r"needs .*'minatar'.*\n.*sherd\[minatar\]"):
        make_host("MinAtar/Breakout-v1", 1, 0)
