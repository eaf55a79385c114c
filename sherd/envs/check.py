"""What is wrong with an environment, found by stepping it: behind the command `sherd check-env`.

A simulator is stepped through its own raw interface, so that no adapter hides a fault by casting; a graph
environment is stepped through the same checks by a thin front. When the raw environment is sound, Sherd's
adapter of it is checked too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sherd.envs import registry
from sherd.envs.host import atari, envpool
from sherd.envs.host import gymnasium as loop
from sherd.envs.host.faults import blamed_line
from sherd.envs.host.faulty_batch import batch_faults
from sherd.envs.host.faulty_leaf import (
    Fault,
    Unsound,
    difference,
    faults,
    flat,
    mask_fault,
    named,
    sample_action,
)
from sherd.errors import RunError
from sherd.spaces import GraphEnv, carried_dtype, space_map, tree_map

# Enough to meet an unseeded generator, few enough to hold image observations in memory.
_REPLAYED = 200
# Resets that show where episodes begin.
_RESETS = 32
_FINAL_KEYS = ("final_observation", "final_obs", "terminal_observation")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: what, in which leaf of a space (or ""), and how to fix it."""

    what: str
    leaf: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}\n  fix: {self.fix}"


class Findings(list[Problem]):
    """The problems of an environment, and notes on what is unusual without being wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self._seen: set[tuple[str, str]] = set()

    def report(self, kind: str, leaf: str, what: str, fix: str) -> None:
        """Add a problem, once per kind and leaf."""
        if (kind, leaf) not in self._seen:
            self._seen.add((kind, leaf))
            self.append(Problem(what, leaf, fix))

    def report_fault(self, fault: Fault, when: str) -> None:
        """Add a leaf's fault, saying when it was met."""
        self.report(fault.kind, fault.leaf, f"{fault.what} ({when})", fault.fix)


def check_env(env: Any, steps: int = 1000, seed: int = 0) -> Findings:
    """Step an environment with random actions and name everything that is wrong with it.

    >>> check_env("CartPole-v1", steps=100)
    []
    """
    findings = Findings()
    try:
        registry.describe(env)
        make = _raw_maker(env)
        if make is not None:
            _check_raw(make, steps, seed, findings)
        if not findings and registry.kind_of(env) == "host":
            _check_adapter(env, min(steps, _REPLAYED), seed, findings)
    except _Broken:
        pass
    except Unsound as error:
        for fault in error.found:
            findings.report(fault.kind, fault.leaf, fault.what, fault.fix)
    except RunError as error:
        source = blamed_line(error.__cause__) if error.__cause__ else None
        # The error's own fix, if it has one, speaks to whoever trains and may name this very command.
        what = str(error).partition("\n  fix: ")[0]
        findings.report("raised", "", what, f"see {source}" if source else "see the message")
    return findings


def _check_adapter(env: Any, steps: int, seed: int, findings: Findings) -> None:
    batch = registry.make_host(env, 2, seed)
    for fault in batch_faults(batch, steps, seed):
        findings.report_fault(fault, "Sherd's batch of it")
    batch.close()


class _Broken(Exception):
    """The environment cannot be stepped any further; the cause has been reported."""


def _raw_maker(env: Any) -> Callable[[], Any] | None:
    if registry.kind_of(env) == "graph":
        return lambda: _GraphFront(registry.make_graph(env))
    target = registry.load(env)
    if not isinstance(target, str):
        return lambda: loop.call_factory(registry.name_of(env), target)
    # Their simulators have no other interface than the batched one that the adapter drives.
    if target.startswith((atari.PREFIX, envpool.PREFIX)):
        return None
    return lambda: loop.make_one(target)


class _GraphFront:
    """A graph environment behind Gymnasium's interface, so that one set of checks serves both kinds."""

    carried = True

    def __init__(self, env: GraphEnv) -> None:
        import jax

        self._jax = jax
        self.observation_space, self.action_space = env.spec.observation, env.spec.action
        self._start, self._advance = jax.jit(env.reset), jax.jit(env.step)
        self._key = jax.random.key(0)

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._key = self._jax.random.key(seed)
        self._state, observation = self._start(self._next_key())
        return self._host(observation), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        outcome = self._advance(self._next_key(), self._state, self._carry(action))
        self._state, observation, *rest = outcome
        reward, terminated, truncated = (np.asarray(part)[()] for part in rest)
        return self._host(observation), reward, terminated, truncated, {}

    def close(self) -> None:
        pass

    def _next_key(self) -> Any:
        self._key, key = self._jax.random.split(self._key)
        return key

    def _host(self, observation: Any) -> Any:
        return self._jax.tree.map(np.asarray, observation)

    def _carry(self, action: Any) -> Any:
        dtypes = space_map(carried_dtype, self.action_space)
        return tree_map(lambda part, dtype: np.asarray(part, dtype), action, dtypes)


@dataclass
class _Episode:
    """A recorded episode: what `reset` gave, then (action, observation, reward, terminated, truncated)."""

    first: Any
    steps: list[tuple[Any, Any, Any, Any, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.steps) and bool(self.steps[-1][3] or self.steps[-1][4])


def _check_raw(make: Callable[[], Any], steps: int, seed: int, findings: Findings) -> None:
    episodes = _record(make(), steps, seed, findings)
    if not episodes[0].ended and not findings:
        findings.notes.append(f"no episode ended within {steps} steps")
    # A replay of an environment that is already known to be wrong would only repeat it.
    if not findings:
        _check_seed(make(), episodes, seed, findings)
    if not findings:
        _check_final(make(), episodes, seed, findings)


def _record(env: Any, steps: int, seed: int, findings: Findings) -> list[_Episode]:
    env.action_space.seed(seed)
    carried = getattr(env, "carried", False)
    episodes = [_Episode(_reset(env, findings, seed))]
    for _ in range(steps):
        episode = episodes[-1]
        observation = episode.steps[-1][1] if episode.steps else episode.first
        action = sample_action(env.action_space, observation)
        outcome = _step(env, action, findings)
        episode.steps.append((action, *outcome))
        when = f"step {len(episode.steps)} of episode {len(episodes)}"
        for fault in faults(env.observation_space, outcome[0], carried=carried):
            findings.report_fault(fault, when if not episode.ended else f"final observation, {when}")
        if masked := mask_fault(env.action_space, outcome[0], last=episode.ended):
            findings.report_fault(masked, when)
        if episode.ended:
            episodes.append(_Episode(_reset(env, findings)))
    env.close()
    return episodes


def _reset(env: Any, findings: Findings, seed: int | None = None) -> Any:
    result = _guarded("reset", findings, lambda: env.reset(seed=seed) if seed is not None else env.reset())
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        findings.report("api", "", "reset did not return (observation, info)", "return observation, {}")
        raise _Broken
    for fault in faults(env.observation_space, result[0], carried=getattr(env, "carried", False)):
        findings.report_fault(fault, "reset")
    if masked := mask_fault(env.action_space, result[0], last=False):
        findings.report_fault(masked, "reset")
    return copy.deepcopy(result[0])


def _step(env: Any, action: Any, findings: Findings) -> tuple[Any, Any, Any, Any]:
    result = _guarded("step", findings, lambda: env.step(copy.deepcopy(action)))
    if not isinstance(result, tuple) or len(result) != 5:
        size = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        fix = "return observation, reward, terminated, truncated, info"
        findings.report("api", "", f"step returned {size}, not five values", fix)
        raise _Broken
    observation, reward, terminated, truncated, info = result
    if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "fiub":
        findings.report("reward", "reward", f"the reward is {reward!r}, not a number", "return float(reward)")
        raise _Broken
    if not np.isfinite(float(reward)):
        findings.report("reward", "reward", f"the reward is {reward}", "keep rewards finite")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            what = f"{name} is {flag!r} ({type(flag).__name__}), not a bool"
            findings.report("flag", name, what, f"return bool({name})")
            if np.ndim(flag) != 0:
                raise _Broken
    hidden = [key for key in _FINAL_KEYS if isinstance(info, Mapping) and key in info]
    if hidden and (terminated or truncated):
        what = f"the environment resets itself: its final observation is only in info[{hidden[0]!r}]"
        findings.report("final", "", what, "return the final observation from step, and let Sherd reset")
    return copy.deepcopy(observation), reward, terminated, truncated


def _guarded(during: str, findings: Findings, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        source = blamed_line(error)
        where = f"see {source.quoted()}" if source else "the traceback lies within an installed package"
        findings.report("raised", "", f"{during} raised {type(error).__name__}: {error}", where)
        raise _Broken from error


def _check_seed(env: Any, episodes: list[_Episode], seed: int, findings: Findings) -> None:
    fix = "draw every random number from self.np_random, after super().reset(seed=seed)"
    left = _REPLAYED
    for number, episode in enumerate(episodes):
        first = _reset(env, findings, seed if number == 0 else None)
        leaf = difference(episode.first, first)
        if leaf is not None:
            findings.report("seed", leaf, f"{named(leaf)} differs after reset with the same seed", fix)
            return
        for count, (action, *expected) in enumerate(episode.steps[:left], 1):
            given = _step(env, action, findings)
            for name, one, other in zip(("", "reward", "terminated", "truncated"), expected, given):
                leaf = difference(one, other, name)
                if leaf is not None:
                    what = f"{named(leaf)} differs at step {count} with the same seed and actions"
                    findings.report("seed", leaf, what, fix)
                    return
        left -= len(episode.steps)
        if left <= 0:
            break
    env.close()


def _check_final(env: Any, episodes: list[_Episode], seed: int, findings: Findings) -> None:
    """Find an environment that resets itself: episodes that end where episodes begin, out of nowhere."""
    ended = [episode for episode in episodes if episode.ended and len(episode.steps) > 1]
    if len(ended) < 2:
        return
    firsts = [_reset(env, findings, seed), *(_reset(env, findings) for _ in range(_RESETS))]
    env.close()
    starts = np.stack([flat(first) for first in firsts])
    low, high = starts.min(0), starts.max(0)
    # The sampled range is somewhat narrower than the true one.
    low, high = low - 0.5 * (high - low), high + 0.5 * (high - low)

    def among_starts(observation: Any) -> bool:
        values = flat(observation)
        return bool(((values >= low) & (values <= high)).all())

    last = all(among_starts(episode.steps[-1][1]) for episode in ended)
    if last and not any(among_starts(episode.steps[-2][1]) for episode in ended):
        what = "the observation at the end of an episode is the first one of the next: the final one is lost"
        findings.report("final", "", what, "return the final observation from step, and let Sherd reset")
