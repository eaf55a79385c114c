"""A policy and a value function on one torso or two, for any observation and action spaces.

An `ActorCritic` holds no numbers: parameters and memories are trees that the caller carries. Memory is
a tuple with one tree per torso, or `()` when the torso is feed-forward; callers need not look inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sherd.nn.distributions import Distribution, distribution, log_std_size, parameter_size
from sherd.nn.heads import head, linear
from sherd.nn.networks import Network, is_recurrent, make_torso, torso_name
from sherd.nn.recurrence import feature_width, flatten, lead_axes, reset, sample_inputs, unroll_torso
from sherd.spaces import MASK_KEY, EnvSpec, Tree, require_supported

Params = dict[str, Any]


# Compared by identity: spaces do not hash, and jit may need to.
@dataclass(frozen=True, eq=False)
class ActorCritic:
    """See `actor_critic`, which makes one."""

    spec: EnvSpec
    torso: Any
    shared: bool

    @property
    def recurrent(self) -> bool:
        """Whether the torso carries a memory from step to step."""
        return is_recurrent(self.torso)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters: a nearly uniform policy, a value of the features' own scale."""
        policy_key, value_key, *keys = jax.random.split(key, 2 + len(self._towers))
        inputs = sample_inputs(self.torso, self.spec.observation)
        params = {name: self.torso.init(key, *inputs) for name, key in zip(self._towers, keys)}
        width = feature_width(self.torso, params["torso"], inputs)
        outputs = parameter_size(self.spec.action)
        params["policy"] = head(policy_key, width, outputs, scale=0.01)
        params["value"] = head(value_key, width, 1, scale=1.0)
        if deviations := log_std_size(self.spec.action):
            params["log_std"] = jnp.zeros(deviations, jnp.float32)
        return params

    def initial_memory(self, num_envs: int) -> Tree:
        """What each environment's rows remember before their first step."""
        if not self.recurrent:
            return ()
        return tuple(self.torso.initial_memory(num_envs) for _ in self._towers)

    def step(
        self, params: Params, obs: Tree, memory: Tree, first: jax.Array
    ) -> tuple[Distribution, jax.Array, Tree]:
        """Policy and value [env] of observations [env, ...]; memories start afresh where `first`."""
        if not self.recurrent:
            return *self._heads(params, obs, self._features(params, obs)), ()
        memory = reset(memory, self.initial_memory(first.shape[0]), first)
        pairs = [self.torso.apply(params[name], obs, part) for name, part in zip(self._towers, memory)]
        features, after = zip(*pairs)
        return *self._heads(params, obs, features), after

    def unroll(
        self, params: Params, obs: Tree, memory: Tree, first: jax.Array
    ) -> tuple[Distribution, jax.Array, Tree]:
        """Policy and value [time, env] of a rollout that began with `memory` [env, ...].

        The third result is the memory after each step, [time, env, ...].
        """
        if not self.recurrent:
            lead = lead_axes(self.spec.observation, obs)
            flat = self._features(params, flatten(obs, len(lead)))
            return *self._heads(params, obs, [x.reshape((*lead, -1)) for x in flat]), ()
        towers = zip(self._towers, memory)
        unrolled = [unroll_torso(self.torso, params[name], obs, part, first) for name, part in towers]
        features, memories = zip(*unrolled)
        return *self._heads(params, obs, features), memories

    def value(self, params: Params, obs: Tree, memory: Tree) -> jax.Array:
        """The value of observations with any leading axes, given memories with the same; no resets."""
        lead = lead_axes(self.spec.observation, obs)
        obs, name = flatten(obs, len(lead)), self._towers[-1]
        if self.recurrent:
            features, _ = self.torso.apply(params[name], obs, flatten(memory[-1], len(lead)))
        else:
            features = self.torso.apply(params[name], obs)
        return linear(params["value"], features).reshape(lead)

    @property
    def _towers(self) -> tuple[str, ...]:
        return ("torso",) if self.shared else ("torso", "value_torso")

    def _features(self, params: Params, obs: Tree) -> list[jax.Array]:
        return [self.torso.apply(params[name], obs) for name in self._towers]

    def _heads(
        self, params: Params, obs: Tree, features: Sequence[jax.Array]
    ) -> tuple[Distribution, jax.Array]:
        outputs = linear(params["policy"], features[0])
        mask = obs[MASK_KEY] if self.spec.masked else None
        policy = distribution(self.spec.action, (outputs, params.get("log_std")), mask)
        return policy, linear(params["value"], features[-1])[..., 0]


def actor_critic(
    spec: EnvSpec,
    network: str | Network = "auto",
    hidden: tuple[int, ...] = (64, 64),
    memory_units: int = 128,
    shared: bool | None = None,
) -> ActorCritic:
    """A policy and a value function for an environment; `network` is as for `make_torso`.

    Unless `shared` says otherwise, an 'mlp' is two torsos (as in CleanRL) and anything else one.

    >>> from gymnasium import spaces as gym_spaces
    >>> spec = EnvSpec("toy", gym_spaces.Box(-1, 1, (3,)), gym_spaces.Discrete(2), "host")
    >>> model = actor_critic(spec)
    >>> params = model.init(jax.random.key(0))
    >>> policy, value, memory = model.step(params, jnp.zeros((5, 3)), (), jnp.ones(5, bool))
    >>> policy.entropy().shape, value.shape, memory
    ((5,), (5,), ())
    """
    require_supported(spec.id, "observation", spec.observation)
    require_supported(spec.id, "action", spec.action)
    if shared is None:
        shared = not (isinstance(network, str) and torso_name(network, spec) == "mlp")
    return ActorCritic(spec, make_torso(network, spec, hidden, memory_units), shared)
