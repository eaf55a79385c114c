"""Rollouts made up for on-policy tests, and what they are worth by slow loops over the papers' formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from sherd import Algorithm, Transition
from sherd.spaces import EnvSpec

TIME, ENVS = 9, 2


def invented(algorithm: Algorithm, seed: int = 7) -> Transition:
    """Nine steps of two environments: one episode terminates, two are truncated, one of them at the end."""
    keys = jax.random.split(jax.random.key(seed), 4)
    width = algorithm.spec.observation.shape[0]
    action = jax.random.randint(keys[0], (TIME, ENVS), 0, int(algorithm.spec.action.n))
    terminated = jnp.zeros((TIME, ENVS), bool).at[2, 0].set(True)
    truncated = jnp.zeros((TIME, ENVS), bool).at[4, 1].set(True).at[-1, 0].set(True)
    obs = jax.random.normal(keys[1], (TIME + 1, ENVS, width))
    # Where an episode ended, the next observation is its last one, not the first of the next episode.
    final = jax.random.normal(keys[2], (TIME, ENVS, width))
    ended = terminated | truncated
    return Transition(
        obs=obs[:-1],
        action=action,
        reward=jax.random.normal(keys[3], (TIME, ENVS)),
        terminated=terminated,
        truncated=truncated,
        next_obs=jnp.where(ended[..., None], final, obs[1:]),
        first=jnp.concatenate([jnp.ones((1, ENVS), bool), ended[:-1]]),
        extra=action,
    )


def values(algorithm: Any, params: Any, rollout: Transition) -> np.ndarray:
    """The values of a rollout's observations."""
    return np.asarray(algorithm.model.value(params, rollout.obs, ()))


def log_probs(algorithm: Any, params: Any, rollout: Transition) -> jax.Array:
    """How likely a rollout's actions are."""
    policy, _, _ = algorithm.model.unroll(params, rollout.obs, (), rollout.first)
    return policy.log_prob(rollout.action)


def textbook_loss(algorithm: Any, rollout: Transition, weight: Any, target: Any) -> Callable[[Any], Any]:
    """The loss of an actor-critic whose weights and targets are known numbers."""

    def loss(params: Any) -> Any:
        policy, value, _ = algorithm.model.unroll(params, rollout.obs, (), rollout.first)
        gain = policy.log_prob(rollout.action) * weight + algorithm.entropy_cost * policy.entropy()
        return (algorithm.value_cost * 0.5 * (value - target) ** 2 - gain).mean()

    return loss


def assert_same_gradient(found: Callable[[Any], Any], wanted: Callable[[Any], Any], params: Any) -> None:
    """Two losses have the same gradient, within rounding."""
    pair = jax.jit(jax.grad(found))(params), jax.jit(jax.grad(wanted))(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *pair)


def slow_returns(
    algorithm: Any, params: Any, rollout: Transition, n: int = TIME, lam: float | None = None
) -> np.ndarray:
    """Returns [time, env] by the definition: of n steps, or the mixture of all counts that `lam` weighs."""
    following = np.asarray(algorithm.model.value(params, rollout.next_obs, ()))
    found = np.zeros((TIME, ENVS))
    for t, e in np.ndindex(TIME, ENVS):
        most = _left(rollout, t, e)
        sums = [_sum(algorithm.discount, rollout, following, t, e, k) for k in range(1, most + 1)]
        if lam is None:
            found[t, e] = sums[min(n, most) - 1]
        else:
            mixed = sum((1 - lam) * lam**k * each for k, each in enumerate(sums[:-1]))
            found[t, e] = mixed + lam ** (most - 1) * sums[-1]
    return found


def slow_vtrace(
    algorithm: Any,
    params: Any,
    rollout: Transition,
    ratio: Any,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_policy_rho: float = 1.0,
    trace_lambda: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Targets by equation 1 of Espeholt et al. (2018), and advantages by its section 4.2, [time, env]."""
    following = np.asarray(algorithm.model.value(params, rollout.next_obs, ()))
    value, ratio = values(algorithm, params, rollout), np.asarray(ratio)
    reached = np.asarray(rollout.reward) + algorithm.discount * np.where(rollout.terminated, 0, following)
    target, advantage = value.copy(), np.zeros((TIME, ENVS))
    for s, e in np.ndindex(TIME, ENVS):
        for t in range(s, s + _left(rollout, s, e)):
            passed = np.prod([trace_lambda * min(clip_c, ratio[i, e]) for i in range(s, t)])
            error = min(clip_rho, ratio[t, e]) * (reached[t, e] - value[t, e])
            target[s, e] += algorithm.discount ** (t - s) * passed * error
    for s, e in np.ndindex(TIME, ENVS):
        after = reached[s, e]
        if _left(rollout, s, e) > 1:
            mixed = trace_lambda * target[s + 1, e] + (1 - trace_lambda) * value[s + 1, e]
            after = rollout.reward[s, e] + algorithm.discount * mixed
        advantage[s, e] = min(clip_policy_rho, ratio[s, e]) * (after - value[s, e])
    return target, advantage


def _left(rollout: Transition, t: int, e: int) -> int:
    """How many steps there are until the episode or the rollout ends."""
    ended = np.asarray(rollout.terminated | rollout.truncated)[t:, e]
    return int(ended.argmax()) + 1 if ended.any() else TIME - t


def _sum(discount: float, rollout: Transition, following: np.ndarray, t: int, e: int, n: int) -> float:
    total = sum(discount**k * float(rollout.reward[t + k, e]) for k in range(n))
    alive = not bool(rollout.terminated[t + n - 1, e])
    return total + alive * discount**n * following[t + n - 1, e]


class Recall:
    """Three steps: the first shows a sign, the last pays 1 for giving it back and -1 for the other one."""

    def __init__(self) -> None:
        self.spec = EnvSpec("recall", spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2), "graph")

    def reset(self, key):
        sign = jax.random.bernoulli(key).astype(jnp.float32)
        return (sign, jnp.int32(0)), jnp.array([2 * sign - 1, 0.0])

    def step(self, key, state, action):
        del key
        sign, t = state
        over = t == 2
        reward = jnp.where(over, jnp.where(action == sign, 1.0, -1.0), 0.0)
        return (sign, t + 1), jnp.array([0.0, (t + 1.0) / 3]), reward, over, ~over & over
