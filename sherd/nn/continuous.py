"""Actors and critics for bounded continuous actions, as DDPG, TD3 and SAC need them.

None holds numbers: parameters are trees that the caller carries. Randomness comes as standard-normal noise
with a row for each row of the batch, so that a sample does not depend on how the batch is divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.encoders import MLP
from sherd.nn.ensembles import apply_many, init_many
from sherd.nn.heads import head, linear
from sherd.nn.kinds import per_key
from sherd.nn.networks import NAMES, Network, is_recurrent, make_torso
from sherd.nn.recurrence import feature_width, features, flatten, lead_axes, sample_inputs
from sherd.nn.squash import from_unit, require_bounded, soft_log_std, squashed_sample, to_unit
from sherd.spaces import EnvSpec, Tree, require_supported

Params = dict[str, Any]


def row_noise(space: gym_spaces.Box, keys: jax.Array) -> jax.Array:
    """Standard-normal noise for actions, [*keys.shape, *space.shape], each row from its own key.

    >>> row_noise(gym_spaces.Box(-1, 1, (2,)), jax.random.split(jax.random.key(0), 5)).shape
    (5, 2)
    """
    return per_key(lambda key: jax.random.normal(key, space.shape, jnp.float32), keys)


# Compared by identity: spaces do not hash, and jit may need to.
@dataclass(frozen=True, eq=False)
class Actor:
    """See `actor`, which makes one."""

    spec: EnvSpec
    torso: Any
    stochastic: bool

    @property
    def space(self) -> gym_spaces.Box:
        """The actions' space."""
        return require_bounded(self.spec)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters: actions in the middle of their bounds, nearly."""
        torso_key, mean_key, std_key = jax.random.split(key, 3)
        inputs = sample_inputs(self.torso, self.spec.observation)
        params: Params = {"torso": self.torso.init(torso_key, *inputs)}
        width, size = feature_width(self.torso, params["torso"], inputs), math.prod(self.space.shape)
        params["mean"] = head(mean_key, width, size, scale=0.01)
        if self.stochastic:
            params["log_std"] = head(std_key, width, size, scale=0.01)
        return params

    def mode(self, params: Params, obs: Tree) -> jax.Array:
        """The action without noise, for observations with any leading axes."""
        found = features(self.torso, params["torso"], self.spec.observation, obs)
        return from_unit(self.space, jnp.tanh(self._shaped(linear(params["mean"], found))))

    def sample(self, params: Params, obs: Tree, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A stochastic actor's actions and their log-probabilities [...], from noise [..., *space.shape]."""
        found = features(self.torso, params["torso"], self.spec.observation, obs)
        mean = self._shaped(linear(params["mean"], found))
        log_std = soft_log_std(self._shaped(linear(params["log_std"], found)))
        return squashed_sample(self.space, mean, log_std, noise)

    def _shaped(self, x: jax.Array) -> jax.Array:
        return x.reshape((*x.shape[:-1], *self.space.shape))


def actor(
    spec: EnvSpec,
    network: str | Network = "auto",
    hidden: tuple[int, ...] = (256, 256),
    stochastic: bool = False,
) -> Actor:
    """A policy over a Box with finite bounds; `network` is as for `make_torso`, without memory.

    A deterministic one is tanh, scaled to the bounds (Lillicrap et al., 2016); a stochastic one a normal
    distribution squashed in the same way, whose deviation depends on the state (Haarnoja et al., 2018).

    >>> spec = EnvSpec("toy", gym_spaces.Box(-1, 1, (3,)), gym_spaces.Box(-2, 2, (1,)), "host")
    >>> model = actor(spec, hidden=(8,), stochastic=True)
    >>> params, obs = jax.jit(model.init)(jax.random.key(0)), jnp.zeros((5, 3))
    >>> action, log_prob = model.sample(params, obs, jnp.zeros((5, 1)))
    >>> action.shape, log_prob.shape, model.mode(params, obs).shape
    ((5, 1), (5,), (5, 1))
    """
    require_supported(spec.id, "observation", spec.observation)
    require_bounded(spec)
    return Actor(spec, _feed_forward(spec, network, hidden), stochastic)


@dataclass(frozen=True, eq=False)
class Critics:
    """See `critics`, which makes some."""

    spec: EnvSpec
    torso: Any
    count: int

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters of all critics, stacked along a first axis."""
        return init_many(self._init, key, self.count)

    def value(self, params: Params, obs: Tree, action: jax.Array) -> jax.Array:
        """What each critic thinks of actions, [count, ...]; observations and actions have equal leads."""
        space, lead = require_bounded(self.spec), lead_axes(self.spec.observation, obs)
        unit = to_unit(space, action).reshape((-1, math.prod(space.shape)))
        return apply_many(self._value, params, flatten(obs, len(lead)), unit).reshape((self.count, *lead))

    def _init(self, key: jax.Array) -> Params:
        torso_key, value_key = jax.random.split(key)
        obs, *_ = sample_inputs(self.torso, self.spec.observation)
        action = jnp.zeros((1, math.prod(require_bounded(self.spec).shape)))
        torso = self.torso.init(torso_key, obs, action)
        width = feature_width(self.torso, torso, (obs, action))
        return {"torso": torso, "value": head(value_key, width, 1, scale=1.0)}

    def _value(self, params: Params, obs: Tree, action: jax.Array) -> jax.Array:
        return linear(params["value"], self.torso.apply(params["torso"], obs, action))[..., 0]


@dataclass(frozen=True)
class Joined:
    """A network of one's own, then layers that see its features and an action."""

    network: Any
    layers: Any

    def init(self, key: jax.Array, obs: Tree, action: jax.Array) -> Params:
        """Fresh parameters of both."""
        network_key, layers_key = jax.random.split(key)
        params = self.network.init(network_key, obs)
        feature_width(self.network, params, (obs,))
        beside = jnp.concatenate([self.network.apply(params, obs), action], axis=-1)
        return {"network": params, "layers": self.layers.init(layers_key, beside)}

    def apply(self, params: Params, obs: Tree, action: jax.Array) -> jax.Array:
        """Features [batch, width]."""
        beside = jnp.concatenate([self.network.apply(params["network"], obs), action], axis=-1)
        return self.layers.apply(params["layers"], beside)


def critics(
    spec: EnvSpec,
    hidden: tuple[int, ...] = (256, 256),
    count: int = 2,
    network: str | Network = "auto",
) -> Critics:
    """Several action values side by side, whose least is a cautious one (Fujimoto et al., 2018).

    The action, scaled to [-1, 1], stands beside the observation; where that is an image or `network` is
    one's own, beside its features, and both go through layers of widths `hidden`.

    >>> spec = EnvSpec("toy", gym_spaces.Box(-1, 1, (3,)), gym_spaces.Box(-2, 2, (1,)), "host")
    >>> model = critics(spec, hidden=(8,))
    >>> params = jax.jit(model.init)(jax.random.key(0))
    >>> model.value(params, jnp.zeros((5, 3)), jnp.zeros((5, 1))).shape
    (2, 5)
    """
    require_supported(spec.id, "observation", spec.observation)
    require_bounded(spec)
    torso: Any = _feed_forward(spec, network, hidden)
    if not (isinstance(network, str) and network in NAMES):
        torso = Joined(torso, MLP(hidden, "relu"))
    return Critics(spec, torso, count)


def _feed_forward(spec: EnvSpec, network: str | Network, hidden: tuple[int, ...]) -> Network:
    torso = make_torso(network, spec, hidden, activation="relu")
    if is_recurrent(torso):
        raise UsageError(
            f"{spec.id}: the network {network!r} has a memory, which actors and critics here have not.\n"
            "  fix: use the network 'auto', 'mlp' or 'cnn', or ppo with 'gru'"
        )
    return torso
