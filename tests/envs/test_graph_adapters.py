"""gymnax and brax through their adapters, and the registry that finds them."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sherd.envs.graph import registry
from sherd.envs.graph.batch import reset_all, step_all
from sherd.errors import UsageError
from sherd.spaces import carried_dtype, space_map

GYMNAX = ["Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite", "FrozenLake-misc"]


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'graph/CartPole-v1'"):
        registry.make("graph/Cartpole")
    with pytest.raises(UsageError, match="fix:"):
        registry.make("CartPole-v1")


@pytest.mark.parametrize(
    ("name", "near"), [("gymnax/Breakout", "gymnax/Breakout-MinAtar"), ("brax/antt", "brax/ant")]
)
def test_unknown_names_of_a_package_are_answered_with_the_nearest(name: str, near: str) -> None:
    pytest.importorskip(name.partition("/")[0])
    with pytest.raises(UsageError, match=f"did you mean '{near}'"):
        registry.make(name)


@pytest.mark.parametrize("package", ["gymnax", "brax"])
def test_a_missing_package_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UsageError, match=rf"{package}/ant needs the package '{package}'[^\0]*sherd\[graph-envs\]"
    ):
        registry.make(f"{package}/ant")


def test_listing_names_imports_no_jax() -> None:
    code = "import sys; from sherd.envs.graph import registry; registry.names(); print('jax' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


@pytest.mark.parametrize("name", GYMNAX)
def test_gymnax_keeps_its_declared_spaces(name: str) -> None:
    pytest.importorskip("gymnax")
    env, keys = registry.make(f"gymnax/{name}"), jax.random.split(jax.random.key(0), 3)
    state, obs = jax.jit(partial(reset_all, env))(keys)
    action = jnp.zeros((3, *env.spec.action.shape), carried_dtype(env.spec.action))
    step = jax.jit(lambda state: step_all(env, keys, state, action))
    first = obs
    for _ in range(3):
        state, obs, next_obs, *_ = step(state)
    assert step._cache_size() == 1
    dtypes = space_map(carried_dtype, env.spec.observation)
    for seen in (first, obs, next_obs):
        assert seen.dtype == dtypes
        assert all(np.asarray(row, env.spec.observation.dtype) in env.spec.observation for row in seen)


def test_gymnax_splits_the_time_limit_from_the_end() -> None:
    pytest.importorskip("gymnax")
    env, keys = registry.make("gymnax/CartPole-v1"), jax.random.split(jax.random.key(0), 4)
    state, _ = reset_all(env, keys)
    state = state.replace(
        theta=state.theta.at[1].set(0.3).at[3].set(0.3), time=jnp.array([498, 3, 499, 499], jnp.int32)
    )
    after, obs, next_obs, reward, terminated, truncated = step_all(env, keys, state, jnp.zeros(4, jnp.int32))
    assert terminated.tolist() == [False, True, False, True]
    assert truncated.tolist() == [False, False, True, True]
    assert after.time.tolist() == [499, 0, 0, 0]
    assert (obs != next_obs).any(axis=1).tolist() == [False, True, True, True]
    assert reward.dtype == jnp.float32


def test_gymnax_cartpole_agrees_with_ours() -> None:
    pytest.importorskip("gymnax")
    theirs, ours = registry.make("gymnax/CartPole-v1"), registry.make("graph/CartPole-v1")
    key = jax.random.key(3)
    their_state, _ = theirs.reset(key)
    our_state, _ = ours.reset(key)
    step, ended = 0, False
    while not ended:
        their_state, their_obs, *their_rest = theirs.step(key, their_state, step % 2)
        our_state, our_obs, *our_rest = ours.step(key, our_state, step % 2)
        np.testing.assert_allclose(their_obs, our_obs, atol=1e-5)
        assert [float(x) for x in their_rest] == [float(x) for x in our_rest]
        step, ended = step + 1, bool(our_rest[1])
    assert step > 10


def test_brax_truncates_after_a_thousand_steps() -> None:
    """With brax's own toy for tests, which compiles at once; the ones with physics are tested below."""
    pytest.importorskip("brax")
    env, keys = registry.make("brax/fast"), jax.random.split(jax.random.key(0), 2)
    state, _ = reset_all(env, keys)
    step = jax.jit(lambda state: step_all(env, keys, state, jnp.ones((2, 1))))
    state = state._replace(t=jnp.array([997, 0], jnp.int32))
    flags = []
    for _ in range(4):
        state, obs, next_obs, reward, terminated, truncated = step(state)
        flags.append(truncated.tolist())
        assert ((obs != next_obs).any(axis=1) == truncated).all()
    assert flags == [[False, False], [False, False], [True, False], [False, False]]
    assert state.t.tolist() == [1, 4]
    assert (obs.dtype, reward.dtype, terminated.dtype) == (jnp.float32, jnp.float32, bool)


@pytest.mark.slow
def test_brax_pendulum_ends_both_ways_and_is_silent() -> None:
    """In a process of its own, because a library prints its noise when it is first imported."""
    pytest.importorskip("brax")
    code = """if True:
        import jax, jax.numpy as jnp
        from sherd.envs.graph import batch, registry
        env, keys = registry.make("brax/inverted_pendulum"), jax.random.split(jax.random.key(0), 3)
        state, obs = jax.jit(lambda keys: batch.reset_all(env, keys))(keys)
        state = state._replace(t=jnp.array([0, 999, 0], jnp.int32))
        step = jax.jit(lambda state, action: batch.step_all(env, keys, state, action))
        truncations = terminations = 0
        for _ in range(60):
            state, obs, next_obs, reward, terminated, truncated = step(state, jnp.ones((3, 1)))
            truncations, terminations = truncations + truncated, terminations + terminated
            assert ((obs != next_obs).any(axis=1) == (terminated | truncated)).all()
        assert step._cache_size() == 1
        assert obs.dtype == reward.dtype == jnp.float32 and terminated.dtype == bool
        print(obs.shape, truncations.tolist(), (terminations > 0).tolist(), env.spec.action)
    """
    shown = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True)
    assert shown.stdout.strip() == "(3, 4) [0, 1, 0] [True, True, True] Box(-1.0, 1.0, (1,), float32)", shown
    assert shown.stderr == ""


def test_brax_leaves_the_state_it_was_given_alone() -> None:
    pytest.importorskip("brax")
    env = registry.make("brax/ant")

    def traced(key: jax.Array) -> bool:
        state, _ = env.reset(key)
        before = dict(state.brax.metrics)
        env.step(None, state, jnp.zeros(8))
        assert all(state.brax.metrics[name] is before[name] for name in before)
        return jnp.bool_(True)

    jax.eval_shape(traced, jax.random.key(0))
