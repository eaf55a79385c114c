"""Action values: every combination of parts, recurrence against single steps, masks, noise per row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.discrete import action_of, categorical, index_of
from sherd.nn.ensembles import apply_many, init_many
from sherd.nn.q_network import QNetwork, q_network
from sherd.spaces import EnvSpec, Space

VECTOR, FOUR = gym_spaces.Box(-1, 1, (3,)), gym_spaces.Discrete(4)
MASKED = gym_spaces.Dict({"observation": VECTOR, "action_mask": gym_spaces.MultiBinary(4)})
TIME, ENVS = 5, 3


def spec(observation: Space = VECTOR, action: Space = FOUR) -> EnvSpec:
    return EnvSpec("toy", observation, action, "host")


def vectors(*lead: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=(*lead, 3)), jnp.float32)


def model_of(network: str = "mlp", **parts: object) -> QNetwork:
    return q_network(spec(), network, (8,), memory_units=5, **parts)


@pytest.mark.parametrize(
    ("dueling", "noisy", "atoms"), [(False, False, 7), (False, True, 1), (True, False, 1), (True, True, 7)]
)
def test_parts_combine_and_learn(filled, dueling: bool, noisy: bool, atoms: int) -> None:
    model = model_of(dueling=dueling, noisy=noisy, atoms=atoms, low=-2.0, high=2.0)
    params = filled(model.init)
    obs, noise = vectors(TIME, ENVS), jax.random.key(1)

    @jax.jit
    def both(params, obs):
        def loss(params):
            outputs = model.outputs(params, obs, noise)
            return jnp.square(model.q(outputs)[..., 0] - 1).sum(), outputs

        return jax.grad(loss, has_aux=True)(params)

    gradient, outputs = both(params, obs)
    assert outputs.shape == ((TIME, ENVS, 4) if atoms == 1 else (TIME, ENVS, 4, atoms))
    assert model.q(outputs).shape == (TIME, ENVS, 4)
    for path, leaf in jax.tree.leaves_with_path(gradient):
        assert np.abs(leaf).max() > 0, path
    quiet = model.outputs(params, obs)
    assert np.allclose(outputs, quiet, atol=1e-4) != noisy


@pytest.mark.parametrize("atoms", [1, 7])
def test_dueling_advantages_have_no_mean(filled, atoms: int) -> None:
    model = model_of(dueling=True, atoms=atoms)
    params = filled(model.init)
    run, obs = jax.jit(model.outputs), vectors(ENVS)
    outputs = run(params, obs)
    params["advantage"] = jax.tree.map(jnp.zeros_like, params["advantage"])
    value = run(params, obs)
    np.testing.assert_allclose(outputs.mean(1), value[:, 0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(value, np.broadcast_to(value[:, :1], value.shape))
    assert np.abs(outputs - value).max() > 0.01
    assert np.ptp(np.asarray(value), axis=0).max() > 0.01


def test_distributions_become_their_means(filled) -> None:
    model = model_of(atoms=7, low=-1.0, high=5.0)
    params = filled(model.init)
    logits = np.asarray(model.outputs(params, vectors(ENVS)), np.float64)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = (weights * np.linspace(-1, 5, 7)).sum(-1)
    np.testing.assert_allclose(model.q(logits), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("noisy", [False, True])
def test_recurrent_unroll_equals_successive_steps(filled, noisy: bool) -> None:
    model = model_of("gru", dueling=True, noisy=noisy)
    params = filled(model.init)
    first = jnp.asarray(np.random.default_rng(1).random((TIME, ENVS)) < 0.3).at[0, 0].set(False)
    assert first[1:].any()
    memory = model.initial_memory(ENVS) + 1
    keys = jax.random.split(jax.random.key(2), ENVS) if noisy else None
    obs = vectors(TIME, ENVS)
    outputs, memories = jax.jit(model.unroll)(params, obs, memory, first, keys)
    step, carry = jax.jit(model.step), memory
    for t in range(TIME):
        found, carry = step(params, obs[t], carry, first[t], keys)
        np.testing.assert_allclose(found, outputs[t], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(carry, memories[t], rtol=1e-4, atol=1e-5)


def test_rows_of_sequences_may_have_several_axes(filled) -> None:
    model = model_of("gru")
    params = filled(model.init)
    obs = vectors(TIME, 2, ENVS)
    first = jnp.asarray(np.random.default_rng(1).random((TIME, 2, ENVS)) < 0.3)
    memory = jax.random.normal(jax.random.key(1), (2, ENVS, 5))
    unroll = jax.jit(model.unroll)
    outputs, memories = unroll(params, obs, memory, first)
    assert memories.shape == (TIME, 2, ENVS, 5)
    for draw in range(2):
        expected = unroll(params, obs[:, draw], memory[draw], first[:, draw])
        np.testing.assert_allclose(outputs[:, draw], expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(memories[:, draw], expected[1], rtol=1e-4, atol=1e-5)


def test_a_rows_noise_is_its_own_whatever_it_is_batched_with(filled) -> None:
    model = model_of(dueling=True, noisy=True)
    params = filled(model.init)
    obs, keys = jnp.ones((ENVS, 3)), jax.random.split(jax.random.key(0), ENVS)
    step, none = jax.jit(model.step), jnp.zeros(ENVS, bool)
    whole = np.asarray(step(params, obs, (), none, keys)[0])
    assert np.abs(np.diff(whole, axis=0)).max(1).min() > 1e-3
    np.testing.assert_array_equal(step(params, obs[1:], (), none[1:], keys[1:])[0], whole[1:])
    one = np.asarray(step(params, obs, (), none, keys[0])[0])
    np.testing.assert_allclose(one, np.broadcast_to(whole[0], one.shape), rtol=1e-5, atol=1e-6)


def test_every_layer_draws_noise_of_its_own(filled) -> None:
    model = model_of(dueling=True, noisy=True)
    params = jax.tree.map(jnp.zeros_like, filled(model.init))
    # Two layers of one shape give nothing but noise; what follows sums it, for the first action only.
    for name in ("value", "advantage"):
        params[f"{name}_hidden"]["bias_noise"] = jnp.ones(8)
        params[name]["kernel"] = params[name]["kernel"].at[:, 0].set(1.0)
    outputs = model.outputs(params, vectors(1), jax.random.key(1))[0]
    value, advantage = outputs.mean(), outputs[0] - outputs[1]
    assert value > 0.1
    assert advantage > 0.1
    assert abs(value - advantage) > 0.1


def test_layers_are_rectified() -> None:
    assert model_of().torso.activation == "relu"
    assert model_of("gru").torso.encoder.activation == "relu"


def test_illegal_actions_are_worth_nothing(filled) -> None:
    model = q_network(spec(MASKED), hidden=(8,), atoms=7)
    params = filled(model.init)
    mask = jnp.array([[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], jnp.int8)
    obs = {"observation": vectors(ENVS), "action_mask": mask}
    outputs = model.outputs(params, obs)
    masked = np.asarray(model.q(outputs, obs))
    np.testing.assert_array_equal(masked == -1e9, np.asarray(mask) == 0)
    np.testing.assert_array_equal(masked[np.asarray(mask) == 1], model.q(outputs)[mask == 1])
    policy = categorical(model.spec, model.q(outputs), obs)
    legal = np.take_along_axis(np.asarray(mask), np.asarray(policy.mode())[:, None], 1)
    assert legal.all()
    np.testing.assert_array_equal(policy.mode(), masked.argmax(1))


def test_actions_begin_where_their_space_does() -> None:
    space = gym_spaces.Discrete(3, start=-1)
    index = jnp.arange(3)
    np.testing.assert_array_equal(action_of(space, index), [-1, 0, 1])
    np.testing.assert_array_equal(index_of(space, action_of(space, index)), index)
    assert action_of(space, index).dtype == jnp.int32


def test_an_ensemble_is_its_members_side_by_side() -> None:
    model, obs = model_of(), vectors(ENVS)
    params = jax.jit(lambda key: init_many(model.init, key, 2))(jax.random.key(0))
    values = apply_many(model.outputs, params, obs)
    assert values.shape == (2, ENVS, 4)
    for member in range(2):
        alone = model.outputs(jax.tree.map(lambda leaf, i=member: leaf[i], params), obs)
        np.testing.assert_allclose(values[member], alone, rtol=1e-5, atol=1e-6)
    assert np.abs(values[0] - values[1]).max() > 0.01


@pytest.mark.parametrize(
    ("action", "fix"),
    [(gym_spaces.Box(-1, 1, (2,)), "ddpg, td3, sac or ppo"), (gym_spaces.MultiBinary(2), "use ppo")],
)
def test_other_actions_are_told_which_algorithm_takes_them(action: Space, fix: str) -> None:
    with pytest.raises(UsageError, match=rf"toy: .*Discrete(.|\n)*{fix}"):
        q_network(spec(action=action))


def test_an_impossible_distribution_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="0 atoms"):
        q_network(spec(), atoms=0)
