"""Torsos: shapes for every kind of observation, references for the layers, and choosing by name."""

import math
import sys
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.encoders import MLP, Encoder, NatureCNN, observation_leaves
from sherd.nn.networks import GRUTorso, is_recurrent, make_torso, torso_name
from sherd.spaces import EnvSpec, Space, zeros


def spec(observation: Space) -> EnvSpec:
    return EnvSpec("toy", observation, gym_spaces.Discrete(2), "host")


VECTOR = gym_spaces.Box(-1, 1, (3,))
IMAGE = gym_spaces.Box(0, 255, (84, 84, 3), np.uint8)


def test_mlp_is_tanh_of_affine_layers_with_orthogonal_kernels() -> None:
    network = MLP(hidden=(16, 8))
    x = np.random.default_rng(0).normal(size=(5, 16)).astype(np.float32)
    params = jax.jit(network.init)(jax.random.key(0), x)
    layers = params["params"]
    kernel = np.asarray(layers["Dense_0"]["kernel"])
    np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(16), atol=1e-4)
    expected = x
    for layer in (layers["Dense_0"], layers["Dense_1"]):
        expected = np.tanh(expected @ layer["kernel"] + layer["bias"])
    np.testing.assert_allclose(network.apply(params, x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="relu"):
        MLP(activation="rellu").init(jax.random.key(0), x)


def convolved_size(side: int) -> int:
    for size, stride in ((8, 4), (4, 2), (3, 1)):
        side = (side - size) // stride + 1
    return side


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84, 4), (4, 36, 50)])
def test_nature_network_has_the_published_layers(shape: tuple[int, ...]) -> None:
    network, frames = NatureCNN(), jnp.zeros((2, *shape), jnp.uint8)
    features, variables = jax.eval_shape(lambda: network.init_with_output(jax.random.key(0), frames))
    layers = variables["params"]
    assert features.shape == (2, 512)
    assert [layers[f"Conv_{i}"]["kernel"].shape for i in range(3)] == [
        (8, 8, 4, 32),
        (4, 4, 32, 64),
        (3, 3, 64, 64),
    ]
    sides = [side for side in shape if side != 4]
    assert layers["Dense_0"]["kernel"].shape == (64 * math.prod(map(convolved_size, sides)), 512)


@pytest.mark.parametrize("shape", [(10, 10, 4), (4, 10, 10), (7, 7, 3), (2, 2, 1), (20, 35, 3), (3, 5, 5)])
def test_small_images_keep_their_pixels(shape: tuple[int, ...]) -> None:
    network, frames = NatureCNN(), jnp.zeros((2, *shape))
    features, variables = jax.eval_shape(lambda: network.init_with_output(jax.random.key(0), frames))
    assert features.shape == (2, 128)
    assert min(variables["params"]["Dense_0"]["kernel"].shape) > 0
    assert variables["params"]["Conv_0"]["kernel"].shape[2] == min(shape)


def test_bytes_are_scaled_and_both_layouts_mean_the_same() -> None:
    network = NatureCNN(units=8)
    frames = np.random.default_rng(0).integers(0, 255, (2, 10, 10, 3)).astype(np.uint8)
    params = jax.jit(network.init)(jax.random.key(0), frames)
    features = network.apply(params, frames)
    assert np.abs(features).max() > 0
    np.testing.assert_allclose(network.apply(params, frames.astype(np.float32) / 255), features, rtol=1e-4)
    np.testing.assert_allclose(network.apply(params, np.moveaxis(frames, 3, 1)), features, rtol=1e-5)


def test_encoder_reads_every_leaf_but_the_mask() -> None:
    space = gym_spaces.Dict(
        {
            "action_mask": gym_spaces.MultiBinary(2),
            "room": gym_spaces.Discrete(3, start=1),
            "both": gym_spaces.Tuple(
                [gym_spaces.MultiDiscrete([2, 3]), gym_spaces.Box(0, 100, (2,), np.uint8)]
            ),
        }
    )
    leaves = observation_leaves(space)
    obs = zeros(space, (2,))
    obs["room"][:] = [1, 3]
    obs["both"][0][:] = [[1, 0], [0, 2]]
    obs["both"][1][:] = [[50, 0], [100, 1]]
    flat = np.concatenate([leaf.flat(obs) for leaf in leaves], axis=1)
    np.testing.assert_allclose(
        flat,
        [[0, 1, 1, 0, 0, 0.5, 0, 1, 0, 0], [1, 0, 0, 0, 1, 1, 0.01, 0, 0, 1]],
        rtol=1e-6,
    )
    network = Encoder(leaves, hidden=(4,))
    params = network.init(jax.random.key(0), obs)
    before = network.apply(params, obs)
    obs["action_mask"][:] = 1
    np.testing.assert_array_equal(network.apply(params, obs), before)
    obs["room"][:] = 2
    assert not np.allclose(network.apply(params, obs), before)


def test_images_and_vectors_meet_before_the_head() -> None:
    space = gym_spaces.Dict({"frame": gym_spaces.Box(0, 1, (8, 8, 2)), "speed": VECTOR})
    network = make_torso("auto", spec(space), hidden=(5,))
    features, variables = jax.eval_shape(
        lambda: network.init_with_output(jax.random.key(0), zeros(space, (3,)))
    )
    assert features.shape == (3, 5)
    assert variables["params"]["MLP_0"]["Dense_0"]["kernel"].shape == (128 + 3, 5)


def test_gru_equals_flax() -> None:
    torso, units = GRUTorso(Encoder(observation_leaves(VECTOR), hidden=(4,)), units=6), 6
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(5, 3)).astype(np.float32)
    memory = rng.normal(size=(5, units)).astype(np.float32)
    params = torso.init(jax.random.key(0), obs, memory)
    params = jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params)
    features, after = torso.apply(params, obs, memory)

    names = {"r": slice(units), "z": slice(units, 2 * units), "n": slice(2 * units, None)}
    cell = {}
    for name, gate in names.items():
        cell["i" + name] = {
            "kernel": params["input"]["kernel"][:, gate],
            "bias": params["input"]["bias"][gate],
        }
        cell["h" + name] = {"kernel": params["memory"]["kernel"][:, gate]}
    cell["hn"]["bias"] = params["memory"]["bias"]
    inputs = torso.encoder.apply(params["encoder"], obs)
    expected, _ = nn.GRUCell(units).apply({"params": cell}, memory, inputs)
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(features, after)


def test_names_choose_networks() -> None:
    assert torso_name("auto", spec(VECTOR)) == "mlp"
    assert torso_name("auto", spec(gym_spaces.Dict({"a": VECTOR, "b": IMAGE}))) == "cnn"
    assert [leaf.kind for leaf in make_torso("auto", spec(IMAGE)).leaves] == ["image"]
    assert [leaf.kind for leaf in make_torso("mlp", spec(IMAGE)).leaves] == ["vector"]
    torso = make_torso("gru", spec(IMAGE), memory_units=7)
    assert is_recurrent(torso)
    assert torso.units == 7
    assert torso.encoder.leaves[0].kind == "image"


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'mlp'"):
        make_torso("mpl", spec(VECTOR))
    with pytest.raises(UsageError, match="needs an image"):
        make_torso("cnn", spec(VECTOR))
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        make_torso("nowhere:thing", spec(VECTOR))
    with pytest.raises(UsageError, match=r"has no 'Encodr'; did you mean 'Encoder'"):
        make_torso("sherd.nn.encoders:Encodr", spec(VECTOR))
    with pytest.raises(UsageError, match="without the methods"):
        make_torso("math:pi", spec(VECTOR))
    with pytest.raises(UsageError, match="cannot be made"):
        make_torso(Encoder, spec(VECTOR))
    with pytest.raises(UsageError, match="nothing to look at"):
        make_torso("auto", spec(gym_spaces.Dict({"action_mask": gym_spaces.MultiBinary(2)})))


def test_own_networks_come_as_object_class_factory_or_import_string(monkeypatch) -> None:
    class Own:
        def __init__(self, spec: EnvSpec | None = None) -> None:
            self.spec = spec

        def init(self, key, obs):
            return {}

        def apply(self, params, obs):
            return obs

    module = types.ModuleType("own_network")
    module.Own, module.ready, module.build = Own, Own(), lambda: MLP((3,))
    monkeypatch.setitem(sys.modules, "own_network", module)
    vector = spec(VECTOR)
    assert make_torso(module.ready, vector) is module.ready
    assert make_torso("own_network:ready", vector) is module.ready
    assert make_torso("own_network:Own", vector).spec is vector
    assert make_torso(Own, vector).spec is vector
    assert make_torso("own_network:build", vector) == MLP((3,))
    assert make_torso(MLP, vector) == MLP()
