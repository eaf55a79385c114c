"""Continuous actors and critics: bounds, exact densities, ensembles, joined observations."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.continuous import actor, critics, row_noise
from sherd.nn.squash import from_unit, perturb, soft_log_std, squashed_sample, to_unit
from sherd.nn.targets import polyak
from sherd.spaces import EnvSpec, Space

VECTOR = gym_spaces.Box(-1, 1, (3,))
UNEQUAL = gym_spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.3], np.float32))
ROWS = 5


def spec(observation: Space = VECTOR, action: Space = UNEQUAL) -> EnvSpec:
    return EnvSpec("toy", observation, action, "host")


def vectors(*lead: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(*lead, 3)), jnp.float32)


def test_density_equals_a_transformed_distribution() -> None:
    rng = np.random.default_rng(0)
    mean, log_std, noise = (jnp.asarray(rng.normal(size=(ROWS, 2)), jnp.float32) for _ in range(3))
    action, log_prob = squashed_sample(UNEQUAL, mean, log_std, noise)
    half = (UNEQUAL.high - UNEQUAL.low) / 2
    squash = distrax.Chain([distrax.ScalarAffine(UNEQUAL.low + half, half), distrax.Tanh()])
    reference = distrax.Transformed(distrax.Normal(mean, jnp.exp(log_std)), squash)
    np.testing.assert_allclose(log_prob, reference.log_prob(action).sum(-1), rtol=1e-3)


def test_density_integrates_to_one() -> None:
    space = gym_spaces.Box(-3, 1, (1,))
    noise = jnp.linspace(-9, 9, 20001)[:, None]
    action, log_prob = squashed_sample(space, jnp.array([0.4]), jnp.array([-0.3]), noise)
    mass = np.trapezoid(np.exp(np.asarray(log_prob, np.float64)), np.asarray(action[:, 0], np.float64))
    assert mass == pytest.approx(1, abs=1e-3)


def test_density_stays_finite_where_tanh_saturates() -> None:
    def log_prob(mean):
        return squashed_sample(UNEQUAL, mean, jnp.zeros(2), jnp.ones(2))[1]

    far = jnp.array([60.0, -60.0])
    # There 1 - tanh(x)^2 is 4 exp(-2 |x|), the log of which float32 arithmetic on tanh cannot know.
    x = np.abs(np.asarray(far) + 1)
    expected = np.sum(-0.5 - 0.5 * np.log(2 * np.pi) - np.log(4) + 2 * x - np.log([2.0, 0.15]))
    np.testing.assert_allclose(log_prob(far), expected, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(log_prob)(far), [2.0, -2.0], rtol=1e-5)


def test_actions_keep_their_bounds_and_units_have_inverses() -> None:
    ends = jnp.array([[-1.0, -1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(from_unit(UNEQUAL, ends), [UNEQUAL.low, UNEQUAL.high])
    inside = jnp.array([[0.3, -0.8]])
    np.testing.assert_allclose(to_unit(UNEQUAL, from_unit(UNEQUAL, inside)), inside, rtol=1e-5)
    found = perturb(UNEQUAL, jnp.array([0.0, 0.15]), jnp.array([4.0, -4.0]), deviation=0.2, limit=0.5)
    np.testing.assert_allclose(found, [1.0, 0.075], rtol=1e-5)
    far = perturb(UNEQUAL, jnp.array([1.9, 0.01]), jnp.array([4.0, -4.0]), deviation=0.2)
    np.testing.assert_array_equal(far, [2.0, 0.0])
    assert UNEQUAL.contains(np.asarray(far))


@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_actors_fill_any_shape_of_box(filled, shape: tuple[int, ...]) -> None:
    space = gym_spaces.Box(-2, 6, shape)
    model = actor(spec(action=space), hidden=(8,), stochastic=True)
    params = filled(model.init)
    noise = row_noise(space, jax.random.split(jax.random.key(1), (4, ROWS)))
    obs = vectors(4, ROWS)
    action, log_prob = jax.jit(model.sample)(params, obs, noise)
    assert action.shape == noise.shape == (4, ROWS, *shape)
    assert log_prob.shape == (4, ROWS)
    mode = model.mode(params, obs)
    assert ((action > -2) & (action < 6)).all()
    quiet, _ = model.sample(params, obs, jnp.zeros_like(noise))
    np.testing.assert_allclose(quiet, mode, rtol=1e-5)
    assert np.abs(action - mode).max() > 0.1


def test_deviations_depend_on_the_state_and_stay_in_range(filled) -> None:
    np.testing.assert_allclose(soft_log_std(jnp.array([-1e3, 1e3])), [-5, 2])
    model = actor(spec(), hidden=(8,), stochastic=True)
    params = filled(model.init)
    # With all means equal, densities differ by deviations alone.
    params["mean"] = jax.tree.map(jnp.zeros_like, params["mean"])
    _, log_prob = model.sample(params, vectors(ROWS), jnp.zeros((ROWS, 2)))
    assert np.ptp(np.asarray(log_prob)) > 0.1
    assert "log_std" not in filled(actor(spec(), hidden=(8,)).init)


def test_a_sample_depends_on_its_own_row_only(filled) -> None:
    model = actor(spec(), hidden=(8,), stochastic=True)
    params, obs = filled(model.init), vectors(ROWS)
    keys = jax.random.split(jax.random.key(1), ROWS)
    sample = jax.jit(lambda obs, keys: model.sample(params, obs, row_noise(UNEQUAL, keys))[0])
    np.testing.assert_array_equal(sample(obs, keys)[2:], sample(obs[2:], keys[2:]))


def test_a_fresh_actor_is_central_and_its_gradient_that_of_the_scaled_tanh() -> None:
    model = actor(spec(), hidden=(8,))
    params, obs = jax.jit(model.init)(jax.random.key(0)), vectors(ROWS)
    np.testing.assert_allclose(model.mode(params, obs), np.full((ROWS, 2), [0.0, 0.15]), atol=0.1)
    slope = jax.grad(lambda params: model.mode(params, obs)[:, 0].mean())(params)
    bias = np.asarray(slope["mean"]["bias"])
    assert bias[0] == pytest.approx(2.0, rel=0.05)
    assert bias[1] == 0


class Own:
    """A user's network, without any library."""

    def init(self, key, obs):
        return {"kernel": jax.random.normal(key, (3, 4))}

    def apply(self, params, obs):
        return jnp.tanh(obs @ params["kernel"])


OBSERVATIONS: dict[str, tuple[Space, object]] = {
    "vector": (VECTOR, "auto"),
    "image": (gym_spaces.Box(0, 255, (5, 5, 2), np.uint8), "auto"),
    "dict": (gym_spaces.Dict({"room": gym_spaces.Discrete(3), "at": VECTOR}), "auto"),
    "own": (VECTOR, Own()),
}


@pytest.mark.parametrize("case", OBSERVATIONS)
def test_critics_see_the_observation_and_the_action(filled, case: str) -> None:
    observation, network = OBSERVATIONS[case]
    model = critics(spec(observation), hidden=(8,), count=2, network=network)
    params = filled(model.init)
    observation.seed(0)
    rows = [observation.sample() for _ in range(2 * ROWS)]
    obs = jax.tree.map(lambda *leaf: jnp.stack(leaf).reshape((2, ROWS, *np.shape(leaf[0]))), *rows)
    value = jax.jit(model.value)
    action = jnp.broadcast_to(jnp.array([1.0, 0.1]), (2, ROWS, 2))
    found = np.asarray(value(params, obs, action))
    assert found.shape == (2, 2, ROWS)
    assert np.abs(found[0] - found[1]).max() > 1e-3
    assert np.ptp(found.reshape(2, -1), axis=1).min() > 1e-3
    for change in ([0.5, 0.0], [0.0, 0.1]):
        assert np.abs(value(params, obs, action + jnp.array(change)) - found).min(axis=0).max() > 1e-4
    last = jax.tree.map(lambda leaf: leaf[1], obs)
    np.testing.assert_allclose(value(params, last, action[1]), found[:, 1], rtol=1e-4, atol=1e-5)


def test_critics_see_actions_on_one_scale(filled) -> None:
    """The same place between the bounds is the same input, however wide they are."""
    narrow = critics(spec(action=gym_spaces.Box(-1, 1, (1,))), hidden=(8,))
    wide = critics(spec(action=gym_spaces.Box(-50, 50, (1,))), hidden=(8,))
    params, obs = filled(narrow.init), vectors(ROWS)
    action = jnp.linspace(-1, 1, ROWS)[:, None]
    expected = narrow.value(params, obs, action)
    np.testing.assert_allclose(wide.value(params, obs, 50 * action), expected, rtol=1e-4, atol=1e-5)


def test_targets_follow() -> None:
    target, params = {"w": jnp.array([0.0, 2.0])}, {"w": jnp.array([4.0, 4.0])}
    np.testing.assert_allclose(polyak(target, params, 0.25)["w"], [1.0, 2.5])
    np.testing.assert_array_equal(polyak(target, params, 1.0)["w"], params["w"])
    np.testing.assert_array_equal(polyak(target, params, 0.0)["w"], target["w"])


@pytest.mark.parametrize(
    ("action", "fix"),
    [
        (gym_spaces.Discrete(3), "use dqn, sac or ppo"),
        (gym_spaces.MultiDiscrete([2, 2]), "use ppo"),
        (gym_spaces.Box(0, 9, (2,), np.int32), "use ppo"),
        (gym_spaces.Box(-np.inf, 1, (2,)), "RescaleAction"),
    ],
)
def test_actions_that_cannot_be_squashed_are_refused(action: Space, fix: str) -> None:
    for make in (actor, critics):
        with pytest.raises(UsageError, match=rf"toy: (.|\n)*{fix}"):
            make(spec(action=action))


def test_layers_are_rectified() -> None:
    assert actor(spec()).torso.activation == critics(spec()).torso.activation == "relu"
    assert critics(spec(), network=Own()).torso.layers.activation == "relu"


def test_memories_are_refused() -> None:
    with pytest.raises(UsageError, match="'gru' has a memory"):
        actor(spec(), "gru")
