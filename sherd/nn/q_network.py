"""Action values for Discrete actions: plain, dueling, noisy, distributional, recurrent, in any combination.

A `QNetwork` holds no numbers: parameters and memories are trees that the caller carries. What the network
gives for a row are its *outputs*, [actions] or, with a distribution for each action, logits [actions, atoms];
`q` turns them to values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.nn import value_distributions
from sherd.nn.discrete import legal_only, require_discrete
from sherd.nn.heads import Head, head, linear, noisy_head, noisy_linear
from sherd.nn.kinds import per_key
from sherd.nn.networks import Network, is_recurrent, make_torso
from sherd.nn.recurrence import feature_width, flatten, lead_axes, reset, sample_inputs, unroll_torso
from sherd.spaces import EnvSpec, Tree, require_supported

Params = dict[str, Any]


# Compared by identity: spaces do not hash, and jit may need to.
@dataclass(frozen=True, eq=False)
class QNetwork:
    """See `q_network`, which makes one."""

    spec: EnvSpec
    torso: Any
    dueling: bool
    noisy: bool
    atoms: int
    low: float
    high: float

    @property
    def recurrent(self) -> bool:
        """Whether the torso carries a memory from step to step."""
        return is_recurrent(self.torso)

    @property
    def actions(self) -> int:
        """How many actions there are to choose from."""
        return int(require_discrete(self.spec).n)

    @property
    def support(self) -> np.ndarray:
        """The values that the atoms of a distribution stand for, [atoms]."""
        return value_distributions.support(self.low, self.high, self.atoms)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters."""
        torso_key, *keys = jax.random.split(key, 5)
        inputs = sample_inputs(self.torso, self.spec.observation)
        params = {"torso": self.torso.init(torso_key, *inputs)}
        width = feature_width(self.torso, params["torso"], inputs)
        for index, (name, outputs) in enumerate(self._streams.items()):
            hidden_key, out_key = keys[2 * index : 2 * index + 2]
            if self._deep:
                params[f"{name}_hidden"] = self._layer(hidden_key, width, width, scale=2**0.5)
            params[name] = self._layer(out_key, width, outputs, scale=1.0)
        return params

    def initial_memory(self, num_envs: int) -> Tree:
        """What each environment's rows remember before their first step."""
        return self.torso.initial_memory(num_envs) if self.recurrent else ()

    def step(
        self, params: Params, obs: Tree, memory: Tree, first: jax.Array, noise: jax.Array | None = None
    ) -> tuple[jax.Array, Tree]:
        """Outputs [env, ...] of observations [env, ...]; memories start afresh where `first`.

        `noise` is keys [env], so that a row's noise is its own, or one key for all; none: no noise.
        """
        if not self.recurrent:
            return self.outputs(params, obs, noise), ()
        memory = reset(memory, self.initial_memory(first.shape[0]), first)
        features, memory = self.torso.apply(params["torso"], obs, memory)
        return self._head(params, features, noise), memory

    def unroll(
        self, params: Params, obs: Tree, memory: Tree, first: jax.Array, noise: jax.Array | None = None
    ) -> tuple[jax.Array, Tree]:
        """Outputs [time, rows, ...] of sequences that began with `memory` [rows, ...], and all memories.

        Rows may have several axes, such as [draw, env]. The noise of a key is the same at every step.
        """
        if not self.recurrent:
            return self.outputs(params, obs, noise), ()
        features, memories = unroll_torso(self.torso, params["torso"], obs, memory, first)
        return self._head(params, features, noise), memories

    def outputs(self, params: Params, obs: Tree, noise: jax.Array | None = None) -> jax.Array:
        """Outputs of a feed-forward network for observations with any leading axes."""
        lead = lead_axes(self.spec.observation, obs)
        features = self.torso.apply(params["torso"], flatten(obs, len(lead)))
        return self._head(params, features.reshape((*lead, -1)), noise)

    def q(self, outputs: jax.Array, obs: Tree = None) -> jax.Array:
        """The values [..., actions] that outputs stand for; given `obs`, illegal actions are worth -1e9."""
        values = outputs if self.atoms == 1 else value_distributions.mean(outputs, self.support)
        return values if obs is None else legal_only(self.spec, values, obs)

    @property
    def _streams(self) -> dict[str, int]:
        """The parts of the head and how many numbers each gives."""
        streams = {"value": self.atoms} if self.dueling else {}
        return streams | {"advantage" if self.dueling else "q": self.actions * self.atoms}

    @property
    def _deep(self) -> bool:
        """Whether a part of the head has a hidden layer, which a dueling or noisy one lives by."""
        return self.dueling or self.noisy

    def _layer(self, key: jax.Array, width: int, outputs: int, scale: float) -> Head:
        return noisy_head(key, width, outputs) if self.noisy else head(key, width, outputs, scale)

    def _head(self, params: Params, features: jax.Array, noise: jax.Array | None) -> jax.Array:
        parts = [self._stream(params, index, features, noise) for index in range(len(self._streams))]
        shape = (self.actions,) if self.atoms == 1 else (self.actions, self.atoms)
        outputs = parts[-1].reshape((*features.shape[:-1], *shape))
        if not self.dueling:
            return outputs
        # Wang et al. (2016), equation 9: advantages are told from the value by their mean being zero.
        axis = features.ndim - 1
        value = parts[0] if self.atoms == 1 else parts[0][..., None, :]
        return value + outputs - jnp.mean(outputs, axis=axis, keepdims=True)

    def _stream(self, params: Params, index: int, features: jax.Array, noise: jax.Array | None) -> jax.Array:
        name, x = list(self._streams)[index], features
        if self._deep:
            x = jax.nn.relu(self._apply(params[f"{name}_hidden"], x, noise, 2 * index))
        return self._apply(params[name], x, noise, 2 * index + 1)

    def _apply(self, layer: Head, x: jax.Array, noise: jax.Array | None, place: int) -> jax.Array:
        if not self.noisy:
            return linear(layer, x)
        # Every layer draws noise of its own.
        keys = None if noise is None else per_key(lambda key: jax.random.fold_in(key, place), noise)
        return noisy_linear(layer, x, keys)


def q_network(
    spec: EnvSpec,
    network: str | Network = "auto",
    hidden: tuple[int, ...] = (64, 64),
    memory_units: int = 128,
    dueling: bool = False,
    noisy: bool = False,
    atoms: int = 1,
    low: float = -10.0,
    high: float = 10.0,
) -> QNetwork:
    """Action values for an environment with Discrete actions; `network` is as for `make_torso`.

    `dueling` learns the value of a state apart from the advantages of actions (Wang et al., 2016); `noisy`
    has noise with learnt deviations in the head's layers, to explore by (Fortunato et al., 2018). Either
    gives each part of the head a hidden layer as wide as the features. With more than one of them,
    `atoms` between `low` and `high` carry a distribution of the value (Bellemare et al., 2017).

    >>> from gymnasium import spaces as gym_spaces
    >>> spec = EnvSpec("toy", gym_spaces.Box(-1, 1, (3,)), gym_spaces.Discrete(2), "host")
    >>> model = q_network(spec, hidden=(8,), dueling=True, noisy=True, atoms=51)
    >>> params = jax.jit(model.init)(jax.random.key(0))
    >>> outputs = jax.jit(model.outputs)(params, jnp.zeros((5, 3)), noise=jax.random.key(1))
    >>> outputs.shape, model.q(outputs).shape
    ((5, 2, 51), (5, 2))
    """
    require_supported(spec.id, "observation", spec.observation)
    require_discrete(spec)
    torso = make_torso(network, spec, hidden, memory_units, "relu")
    if atoms != 1:
        value_distributions.support(low, high, atoms)
    return QNetwork(spec, torso, dueling, noisy, atoms, low, high)
