"""What a user might have in their own directory; the tests copy it there as mine.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from sherd import Algorithm, DistributionPolicy, act
from sherd.policies.base import ROLES, Fragment


@dataclass(frozen=True)
class Tiny(Algorithm):
    """A linear policy by REINFORCE."""

    horizon: int = 8
    """Steps per iteration."""
    learning_rate: float = 1e-2
    """Step size."""
    poisoned_from: int = 1_000_000
    """The iteration, from 0, in which the loss becomes NaN."""

    def init(self, key: Any) -> Any:
        del key
        return {"weights": jnp.zeros((self.spec.observation.shape[0], 2))}

    def optimiser(self) -> Any:
        return optax.sgd(self.learning_rate)

    @act
    def explore(self, params: Any, obs: Any, key: Any) -> Any:
        return jax.vmap(jax.random.categorical)(key, obs @ params["weights"])

    @act
    def exploit(self, params: Any, obs: Any) -> Any:
        return (obs @ params["weights"]).argmax(-1)

    def loss(self, params: Any, rollout: Any, iteration: Any) -> Any:
        logits = jax.nn.log_softmax(rollout.obs @ params["weights"])
        chosen = jnp.take_along_axis(logits, rollout.action[..., None], -1)[..., 0]
        poison = jnp.where(iteration >= self.poisoned_from, jnp.nan, 1.0)
        return -(chosen * rollout.reward).mean() * poison

    def loop(self, env: Any, learner: Any) -> None:
        for _ in env.steps(self.horizon):
            env.step(self.explore(learner.params, env.obs))
        learner.step(self.loss, env.rollout, learner.iteration)

    def play(self, env: Any, learner: Any) -> None:
        env.step(self.exploit(learner.params, env.obs))


@dataclass(frozen=True)
class Forgetful(Tiny):
    """Has a hyper-parameter that it never reads."""

    momentum: float = 0.9


@dataclass(frozen=True)
class Broken(Tiny):
    """Its initialisation has a fault of the ordinary kind."""

    def init(self, key: Any) -> Any:
        return [][0]


@dataclass(frozen=True)
class Everything(DistributionPolicy):
    """A user's own policy: everything in one fragment."""

    copies: int = 1
    """A number that can be chosen at launch."""

    def fragments(self) -> tuple[Fragment, ...]:
        return (Fragment("whole", ROLES),)


class Plain(gymnasium.Env):
    """Episodes of five steps."""

    observation_space: Any = gymnasium.spaces.Box(-1, 1, (3,))
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), self.reward(), self.steps == 5, False, {}

    def observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reward(self) -> float:
        return 1.0


class NanReward(Plain):
    """Its rewards become NaN in the fourth iteration of eight steps."""

    def __init__(self) -> None:
        self.total = 0

    def reward(self) -> float:
        self.total += 1
        return float("nan") if self.total == 28 else 1.0


class Talking(Plain):
    """Has a leaf, deep inside, that nothing can be learnt from."""

    observation_space = gymnasium.spaces.Dict(
        {
            "eye": gymnasium.spaces.Box(-1, 1, (3,)),
            "ear": gymnasium.spaces.Dict({"words": gymnasium.spaces.Text(9)}),
        }
    )

    def observe(self) -> Any:
        return {"eye": super().observe(), "ear": {"words": "hello"}}


class Sequences(Talking):
    """The same with a sequence."""

    observation_space = gymnasium.spaces.Dict(
        {"ear": gymnasium.spaces.Tuple([gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))])}
    )
