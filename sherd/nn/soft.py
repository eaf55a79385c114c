"""What SAC needs of a policy and two critics, for Box actions and for Discrete ones.

`judge` gives the critics' lesser value of the policy's action and its log-probability: of one sampled action
if actions are continuous, and if they are discrete the expectation over all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from sherd.errors import UsageError
from sherd.nn.continuous import Actor, Critics, actor, critics, row_noise
from sherd.nn.discrete import categorical, index_of, require_discrete
from sherd.nn.ensembles import apply_many, init_many
from sherd.nn.kinds import Categorical
from sherd.nn.noise import batch_noise, random_actions
from sherd.nn.q_network import QNetwork, q_network
from sherd.spaces import MASK_KEY, EnvSpec

CRITICS = 2


class Soft(Protocol):
    """A stochastic policy and two critics. Batches from replay are [draw, env, ...]."""

    def init(self, key: Any) -> dict[str, Any]:
        """Fresh parameters of the actor and the critics."""

    def sample(self, actor: Any, obs: Any, keys: Any) -> Any:
        """An action for every environment."""

    def random(self, obs: Any, keys: Any) -> Any:
        """An action for every environment, any legal one being as likely."""

    def mode(self, actor: Any, obs: Any) -> Any:
        """The action without chance."""

    def q(self, critic: Any, obs: Any, action: Any) -> Any:
        """What both critics think of actions, [2, draw, env]."""

    def judge(self, actor: Any, critic: Any, obs: Any, keys: Any) -> tuple[Any, Any]:
        """The lesser value of the policy's action and its log-probability, both [draw, env]."""

    def entropy_target(self, obs: Any, ratio: float | None) -> Any:
        """The entropy that a policy should have."""


def soft(spec: EnvSpec, network: Any, hidden: tuple[int, ...]) -> Soft:
    """Policy and critics for an environment with Box or Discrete actions."""
    if not isinstance(spec.action, gym_spaces.Discrete):
        return SoftBox(actor(spec, network, hidden, True), critics(spec, hidden, CRITICS, network))
    model = q_network(spec, network, hidden)
    if model.recurrent:
        raise UsageError(
            f"{spec.id}: the network {network!r} has a memory, which sac does not carry\n"
            "  fix: use the network 'auto', 'mlp' or 'cnn', or dqn or ppo with 'gru'"
        )
    return SoftDiscrete(model)


@dataclass(frozen=True, eq=False)
class SoftBox:
    """Actions of a squashed normal distribution."""

    actor: Actor
    critics: Critics

    def init(self, key: Any) -> dict[str, Any]:
        actor_key, critic_key = jax.random.split(key)
        return {"actor": self.actor.init(actor_key), "critic": self.critics.init(critic_key)}

    def sample(self, actor: Any, obs: Any, keys: Any) -> Any:
        return self.actor.sample(actor, obs, row_noise(self.actor.space, keys))[0]

    def random(self, obs: Any, keys: Any) -> Any:
        return random_actions(self.actor.space, keys)

    def mode(self, actor: Any, obs: Any) -> Any:
        return self.actor.mode(actor, obs)

    def q(self, critic: Any, obs: Any, action: Any) -> Any:
        return self.critics.value(critic, obs, action)

    def judge(self, actor: Any, critic: Any, obs: Any, keys: Any) -> tuple[Any, Any]:
        draws = jax.tree.leaves(obs)[0].shape[0]
        action, log_prob = self.actor.sample(actor, obs, batch_noise(self.actor.space, keys, draws))
        return self.critics.value(critic, obs, action).min(axis=0), log_prob

    def entropy_target(self, obs: Any, ratio: float | None) -> Any:
        # -|A| is meant for actions in [-1, 1]; wider bounds add the logarithm of their half width.
        space = self.actor.space
        size = (1.0 if ratio is None else ratio) * math.prod(space.shape)
        return float(np.log((space.high - space.low) / 2).sum()) - size


@dataclass(frozen=True, eq=False)
class SoftDiscrete:
    """Actions of a categorical distribution; actor and critics are networks of the same kind."""

    network: QNetwork

    def init(self, key: Any) -> dict[str, Any]:
        actor_key, critic_key = jax.random.split(key)
        critic = init_many(self.network.init, critic_key, CRITICS)
        return {"actor": self.network.init(actor_key), "critic": critic}

    def policy(self, actor: Any, obs: Any) -> Categorical:
        return categorical(self.network.spec, self.network.outputs(actor, obs), obs)

    def sample(self, actor: Any, obs: Any, keys: Any) -> Any:
        return self.policy(actor, obs).sample(keys)

    def random(self, obs: Any, keys: Any) -> Any:
        even = jnp.zeros((keys.shape[0], self.network.actions))
        return categorical(self.network.spec, even, obs).sample(keys)

    def mode(self, actor: Any, obs: Any) -> Any:
        return self.policy(actor, obs).mode()

    def q(self, critic: Any, obs: Any, action: Any) -> Any:
        index = index_of(require_discrete(self.network.spec), action)[None, ..., None]
        return jnp.take_along_axis(self._values(critic, obs), index, axis=-1)[..., 0]

    def judge(self, actor: Any, critic: Any, obs: Any, keys: Any) -> tuple[Any, Any]:
        log_prob = jax.nn.log_softmax(self.policy(actor, obs).logits)
        chance, value = jnp.exp(log_prob), self._values(critic, obs).min(axis=0)
        return (chance * value).sum(-1), (chance * log_prob).sum(-1)

    def entropy_target(self, obs: Any, ratio: float | None) -> Any:
        spec = self.network.spec
        options = jnp.asarray(obs[MASK_KEY] != 0).sum(-1) if spec.masked else self.network.actions
        return (0.5 if ratio is None else ratio) * jnp.log(jnp.maximum(options, 1))

    def _values(self, critic: Any, obs: Any) -> Any:
        return apply_many(self.network.outputs, critic, obs)
