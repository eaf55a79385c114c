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
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.distributions import Distribution, distribution, log_std_size, parameter_size
from sherd.nn.networks import Network, is_recurrent, make_torso, torso_name
from sherd.spaces import MASK_KEY, EnvSpec, Tree, require_supported, zeros

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
        obs = zeros(self.spec.observation, (1,))
        memory = self.torso.initial_memory(1) if self.recurrent else None
        args = (obs, memory) if self.recurrent else (obs,)
        params = {name: self.torso.init(key, *args) for name, key in zip(self._towers, keys)}
        width = self._feature_width(params["torso"], args)
        outputs = parameter_size(self.spec.action)
        params["policy"] = _head(policy_key, width, outputs, scale=0.01)
        params["value"] = _head(value_key, width, 1, scale=1.0)
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
        memory = _reset(memory, self.initial_memory(first.shape[0]), first)
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
            lead = self._lead(obs)
            flat = self._features(params, _flatten(obs, len(lead)))
            return *self._heads(params, obs, [x.reshape((*lead, -1)) for x in flat]), ()
        scanned = [self._scan(params[name], obs, part, first) for name, part in zip(self._towers, memory)]
        features, memories = zip(*scanned)
        return *self._heads(params, obs, features), memories

    def value(self, params: Params, obs: Tree, memory: Tree) -> jax.Array:
        """The value of observations with any leading axes, given memories with the same; no resets."""
        lead = self._lead(obs)
        obs, name = _flatten(obs, len(lead)), self._towers[-1]
        if self.recurrent:
            features, _ = self.torso.apply(params[name], obs, _flatten(memory[-1], len(lead)))
        else:
            features = self.torso.apply(params[name], obs)
        return _linear(params["value"], features).reshape(lead)

    @property
    def _towers(self) -> tuple[str, ...]:
        return ("torso",) if self.shared else ("torso", "value_torso")

    def _features(self, params: Params, obs: Tree) -> list[jax.Array]:
        return [self.torso.apply(params[name], obs) for name in self._towers]

    def _heads(
        self, params: Params, obs: Tree, features: Sequence[jax.Array]
    ) -> tuple[Distribution, jax.Array]:
        outputs = _linear(params["policy"], features[0])
        mask = obs[MASK_KEY] if self.spec.masked else None
        policy = distribution(self.spec.action, (outputs, params.get("log_std")), mask)
        return policy, _linear(params["value"], features[-1])[..., 0]

    def _scan(self, params: Any, obs: Tree, memory: Tree, first: jax.Array) -> tuple[jax.Array, Tree]:
        """One torso's features and memories over time."""
        if hasattr(self.torso, "encode") and hasattr(self.torso, "recur"):
            inputs = self.torso.encode(params, _flatten(obs, 2))
            inputs = jax.tree.map(lambda x: x.reshape((*first.shape, *x.shape[1:])), inputs)
            advance = self.torso.recur
        else:
            inputs, advance = obs, self.torso.apply
        fresh = self.torso.initial_memory(first.shape[1])

        def step(carry: Tree, row: tuple[Tree, jax.Array]) -> tuple[Tree, tuple[jax.Array, Tree]]:
            features, carry = advance(params, row[0], _reset(carry, fresh, row[1]))
            return carry, (features, carry)

        return jax.lax.scan(step, memory, (inputs, first))[1]

    def _lead(self, obs: Tree) -> tuple[int, ...]:
        """The leading axes of a batch of observations."""
        space: Any = self.spec.observation
        while isinstance(space, gym_spaces.Dict | gym_spaces.Tuple):
            name: Any = next(iter(space.spaces)) if isinstance(space, gym_spaces.Dict) else 0
            space, obs = space.spaces[name], obs[name]
        return obs.shape[: obs.ndim - len(space.shape)]

    def _feature_width(self, params: Any, args: tuple[Tree, ...]) -> int:
        found = jax.eval_shape(self.torso.apply, params, *args)
        features = found[0] if self.recurrent and isinstance(found, tuple) else found
        shape = getattr(features, "shape", None)
        if shape is None or len(shape) != 2 or shape[0] != 1:
            wanted = "(features, memory)" if self.recurrent else "features"
            raise UsageError(
                f"the network {type(self.torso).__name__} gave {found} for a batch of one observation.\n"
                f"  fix: let apply return {wanted}, with features of shape [batch, width]"
            )
        return shape[1]


def actor_critic(
    spec: EnvSpec,
    network: str | Network = "auto",
    hidden: tuple[int, ...] = (64, 64),
    memory_units: int = 128,
    shared: bool | None = None,
) -> ActorCritic:
    """A policy and a value function for an environment; `network` is as for `make_torso`.

    Unless `shared` says otherwise, an 'mlp' is two torsos (as in CleanRL) and anything else one.

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


def _head(key: jax.Array, width: int, outputs: int, scale: float) -> dict[str, jax.Array]:
    kernel = jax.nn.initializers.orthogonal(scale)(key, (width, outputs), jnp.float32)
    return {"kernel": kernel, "bias": jnp.zeros(outputs, jnp.float32)}


def _linear(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    kernel = params["kernel"]
    if kernel.shape[1] == 1:
        # A product with a single column is summed in an order that depends on the number of rows, so that how
        # environments are shared out would show in the last bit. One with two columns is not.
        return (x @ jnp.pad(kernel, ((0, 0), (0, 1))))[..., :1] + params["bias"]
    return x @ kernel + params["bias"]


def _flatten(tree: Tree, axes: int) -> Tree:
    """The tree with its leading axes made one."""
    return tree if axes == 1 else jax.tree.map(lambda x: x.reshape((-1, *x.shape[axes:])), tree)


def _reset(memory: Tree, fresh: Tree, first: jax.Array) -> Tree:
    """The memory, with the rows of beginning episodes as they were at the start."""
    return jax.tree.map(
        lambda old, new: jnp.where(first.reshape((-1,) + (1,) * (old.ndim - 1)), new, old), memory, fresh
    )
