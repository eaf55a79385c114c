"""Environments as the `env` handle sees them: one step function for graph, host and traced ones."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sherd.author.types import EnvironmentStep, EnvState, Episode, Transition, Tree
from sherd.spaces import EnvSpec, GraphEnv, HostEnv, step_buffers, tree_map, zeros


def begin(simulator: Tree, obs: Tree, num_envs: int) -> EnvState:
    """The state of environments that have just been reset."""
    nothing = jnp.zeros(num_envs, jnp.float32)
    return EnvState(simulator, obs, jnp.ones(num_envs, bool), nothing, jnp.zeros(num_envs, jnp.int32))


def _advance(
    state: EnvState, action: Tree, simulator: Tree, obs: Tree, outcome: tuple[Any, Any, Any, Any]
) -> tuple[EnvState, Transition, Episode]:
    next_obs, reward, terminated, truncated = outcome
    ended = terminated | truncated
    total, length = state.episode_return + reward, state.episode_length + 1
    stepped = EnvState(simulator, obs, ended, jnp.where(ended, 0, total), jnp.where(ended, 0, length))
    transition = Transition(state.obs, action, reward, terminated, truncated, next_obs, state.first, ())
    return stepped, transition, Episode(ended, total, length)


def graph_stepping(env: GraphEnv) -> EnvironmentStep:
    """Step a graph environment: pure JAX, so it may be compiled with everything around it."""
    from sherd.envs.graph.batch import step_all

    def step(state: EnvState, action: Tree, keys: Any) -> tuple[EnvState, Transition, Episode]:
        simulator, obs, *outcome = step_all(env, keys, state.simulator, action)
        return _advance(state, action, simulator, obs, tuple(outcome))

    return EnvironmentStep(step)


def graph_begin(env: GraphEnv, keys: Any) -> EnvState:
    """Reset a graph environment once for each key."""
    from sherd.envs.graph.batch import reset_all

    simulator, obs = reset_all(env, keys)
    return begin(simulator, obs, keys.shape[0])


def host_stepping(env: HostEnv) -> EnvironmentStep:
    """Step host environments with fresh buffers each time: plain, slow, right; for eager runs."""

    def step(state: EnvState, action: Tree, keys: Any) -> tuple[EnvState, Transition, Episode]:
        del keys  # host simulators hold their own generators, seeded by global index
        out = step_buffers(env.spec, env.num_envs)
        env.step(jax.device_get(action), out)
        fields = (out.next_obs, out.reward, out.terminated, out.truncated)
        outcome = tuple(tree_map(jnp.asarray, field) for field in fields)
        return _advance(state, action, (), tree_map(jnp.asarray, out.obs), outcome)

    return EnvironmentStep(step)


def host_begin(env: HostEnv) -> EnvState:
    """Reset host environments."""
    obs = zeros(env.spec.observation, (env.num_envs,))
    env.reset(obs)
    return begin((), tree_map(jnp.asarray, obs), env.num_envs)


def abstract_stepping(spec: EnvSpec) -> EnvironmentStep:
    """Has the shapes of a step and no meaning: what tracing needs."""

    def step(state: EnvState, action: Tree, keys: Any) -> tuple[EnvState, Transition, Episode]:
        count = keys.shape[0]
        obs = tree_map(jnp.asarray, zeros(spec.observation, (count,)))
        outcome = (obs, jnp.zeros(count, jnp.float32), jnp.zeros(count, bool), jnp.zeros(count, bool))
        return _advance(state, action, (), obs, outcome)

    return EnvironmentStep(step)


def abstract_begin(spec: EnvSpec, num_envs: int) -> EnvState:
    """Has the shapes of environments that were just reset."""
    return begin((), tree_map(jnp.asarray, zeros(spec.observation, (num_envs,))), num_envs)
