"""Torsos: networks from an observation tree [batch, ...] to features [batch, width].

`make_torso` finds one by name, by import string, or takes the user's own object. Anything with the two
functions of `Network` will do; a network with `initial_memory` is recurrent.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from sherd.errors import UsageError, nearest
from sherd.imports import load_object
from sherd.nn.encoders import Encoder, observation_leaves
from sherd.spaces import EnvSpec, Tree

NAMES = ("auto", "mlp", "cnn", "gru")


class Network(Protocol):
    """Pure functions with parameters apart. Flax Linen modules are such networks as they are.

    A recurrent network also has `initial_memory(batch) -> tree [batch, ...]`, takes the memory as the
    last argument of `init` and `apply`, and returns (features, memory) from `apply`.
    """

    def init(self, key: Any, obs: Tree, /, *memory: Tree) -> Any:
        """Fresh parameters, given an observation [1, ...] that shows the shapes."""

    def apply(self, params: Any, obs: Tree, /, *memory: Tree) -> Any:
        """Features [batch, width] of observations [batch, ...]."""


@dataclass(frozen=True)
class GRUTorso:
    """A gated recurrent unit over an encoder's features, equal to Flax's GRUCell.

    `apply` is `recur` after `encode`. They are apart because everything that does not depend on the
    memory, the input's half of the gates included, can be computed for all steps of a rollout at once.

    >>> from gymnasium import spaces as gym_spaces
    >>> torso = GRUTorso(Encoder(observation_leaves(gym_spaces.Box(-1, 1, (3,)))), units=8)
    >>> obs, memory = jnp.zeros((2, 3)), torso.initial_memory(2)
    >>> features, memory = torso.apply(torso.init(jax.random.key(0), obs, memory), obs, memory)
    >>> features.shape, memory.shape
    ((2, 8), (2, 8))
    """

    encoder: Network
    units: int = 128

    def initial_memory(self, batch: int) -> jax.Array:
        """What each row remembers before its first step: zeros."""
        return jnp.zeros((batch, self.units), jnp.float32)

    def init(self, key: jax.Array, obs: Tree, memory: Tree) -> dict[str, Any]:
        """Fresh parameters: the encoder's, the input's and the memory's halves of the three gates."""
        keys = jax.random.split(key, 5)
        encoder = self.encoder.init(keys[0], obs)
        width = jax.eval_shape(self.encoder.apply, encoder, obs).shape[-1]
        orthogonal = jax.nn.initializers.orthogonal()
        gates = [orthogonal(gate, (self.units, self.units)) for gate in keys[2:]]
        kernel = jax.nn.initializers.lecun_normal()(keys[1], (width, 3 * self.units))
        return {
            "encoder": encoder,
            "input": {"kernel": kernel, "bias": jnp.zeros(3 * self.units)},
            "memory": {"kernel": jnp.concatenate(gates, axis=1), "bias": jnp.zeros(self.units)},
        }

    def encode(self, params: Any, obs: Tree) -> jax.Array:
        """All that can be known without the memory: the input's half of the gates [batch, 3 units]."""
        features = self.encoder.apply(params["encoder"], obs)
        return features @ params["input"]["kernel"] + params["input"]["bias"]

    def recur(self, params: Any, inputs: jax.Array, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step of the memory, from what `encode` gave."""
        reset_in, update_in, new_in = jnp.split(inputs, 3, axis=-1)
        reset, update, new = jnp.split(memory @ params["memory"]["kernel"], 3, axis=-1)
        update = jax.nn.sigmoid(update_in + update)
        new = jnp.tanh(new_in + jax.nn.sigmoid(reset_in + reset) * (new + params["memory"]["bias"]))
        memory = (1 - update) * new + update * memory
        return memory, memory

    def apply(self, params: Any, obs: Tree, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Features and the next memory."""
        return self.recur(params, self.encode(params, obs), memory)


def is_recurrent(network: Network) -> bool:
    """Whether the network carries a memory.

    >>> is_recurrent(GRUTorso(Encoder(())))
    True
    """
    return hasattr(network, "initial_memory")


def torso_name(name: str, spec: EnvSpec) -> str:
    """The name that 'auto' stands for: 'cnn' if some observation is an image (a 3-d Box), else 'mlp'.

    >>> from gymnasium import spaces as gym_spaces
    >>> torso_name("auto", EnvSpec("toy", gym_spaces.Box(0, 1, (8, 8, 3)), gym_spaces.Discrete(2), "host"))
    'cnn'
    """
    if name != "auto":
        return name
    images = any(leaf.kind == "image" for leaf in observation_leaves(spec.observation))
    return "cnn" if images else "mlp"


def make_torso(
    name: str | Network,
    spec: EnvSpec,
    hidden: tuple[int, ...] = (64, 64),
    memory_units: int = 128,
    activation: str = "tanh",
) -> Network:
    """The network called `name`: auto, mlp, cnn, gru, 'module:attribute', or the object itself.

    A class or function is called to get the network, with the `EnvSpec` if it has a parameter `spec`.

    >>> from gymnasium import spaces as gym_spaces
    >>> spec = EnvSpec("toy", gym_spaces.Box(-1, 1, (3,)), gym_spaces.Discrete(2), "host")
    >>> make_torso("auto", spec, hidden=(32,)).hidden
    (32,)
    """
    if not isinstance(name, str):
        return _as_network(name, spec, repr(name))
    if ":" in name:
        return _as_network(load_object(name), spec, name)
    if name not in NAMES:
        raise UsageError(
            f"there is no network called {name!r}; {nearest(name, NAMES)}\n"
            "  fix: name a built-in network or your own as 'module:attribute'"
        )
    leaves = observation_leaves(spec.observation, images=torso_name(name, spec) != "mlp")
    if not leaves:
        raise UsageError(
            f"{spec.id}: the observation space {spec.observation} has nothing to look at but the action"
            " mask.\n  fix: add an observation beside the mask"
        )
    if name == "cnn" and not any(leaf.kind == "image" for leaf in leaves):
        raise UsageError(
            f"{spec.id}: the network 'cnn' needs an image (a 3-d Box), but the observations are"
            f" {spec.observation}.\n  fix: use the network 'auto' or 'mlp'"
        )
    encoder = Encoder(leaves, tuple(hidden), activation)
    return GRUTorso(encoder, memory_units) if name == "gru" else encoder


def _as_network(found: Any, spec: EnvSpec, name: str) -> Network:
    if callable(found) and not _has_network_methods(found):
        signature = inspect.signature(found)
        arguments = {"spec": spec} if "spec" in signature.parameters else {}
        try:
            signature.bind(**arguments)
        except TypeError as error:
            raise UsageError(
                f"network {name} cannot be made: {error}.\n"
                "  fix: give an object, or a class or function that needs no argument but 'spec'"
            ) from error
        found = found(**arguments)
    if not _has_network_methods(found):
        raise UsageError(
            f"network {name} is a {type(found).__name__} without the methods 'init' and 'apply'.\n"
            "  fix: give an object with init(key, obs) -> params and apply(params, obs) -> features"
        )
    return found


def _has_network_methods(found: Any) -> bool:
    return not isinstance(found, type) and all(
        callable(getattr(found, method, None)) for method in ("init", "apply")
    )
