"""Randomness that depends on (run seed, global environment index) and never on how a batch is split.

Simulators with their own generator get one derived seed. Simulators whose start state we draw use a
counter-based hash (splitmix64) instead: a whole batch is drawn in a few NumPy calls, and the same
(seed, environment, episode, dimension) gives the same number on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sherd.errors import UsageError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_TO_UNIT = np.uint64(11), 2.0**-53

Words = np.ndarray[Any, np.dtype[np.uint64]]


def env_seeds(seed: int, first_index: int, count: int) -> list[int]:
    """One 31-bit seed per environment: small enough for every simulator, ALE's int32 included.

    >>> env_seeds(7, 0, 4)[2:] == env_seeds(7, 2, 2)
    True
    """
    if seed < 0:
        raise UsageError(f"the seed is {seed}.\n  fix: use a seed of zero or more")
    words = (np.random.SeedSequence([seed, index]) for index in range(first_index, first_index + count))
    return [int(word.generate_state(1)[0]) >> 1 for word in words]


def _mix(words: Words) -> Words:
    words = (words ^ (words >> _SHIFTS[0])) * _MIX_1
    words = (words ^ (words >> _SHIFTS[1])) * _MIX_2
    return words ^ (words >> _SHIFTS[2])


def stream_keys(seed: int, first_index: int, count: int) -> Words:
    """One 64-bit key per environment, to be given to `uniforms`."""
    root = np.random.SeedSequence([seed]).generate_state(1, np.uint64)
    index = np.arange(first_index + 1, first_index + 1 + count, dtype=np.uint64)
    return _mix(root + index * _GOLDEN)


def uniforms(keys: Words, episodes: Words, size: int) -> np.ndarray:
    """Numbers in [0, 1) of shape (size, environments), one column per environment.

    >>> keys, episodes = stream_keys(0, 0, 3), np.array([5, 0, 2], np.uint64)
    >>> bool((uniforms(keys, episodes, 4)[:, 1:] == uniforms(keys[1:], episodes[1:], 4)).all())
    True
    """
    streams = _mix(keys + episodes * _GOLDEN)
    words = _mix(streams + np.arange(1, size + 1, dtype=np.uint64)[:, None] * _GOLDEN)
    return (words >> _TO_UNIT[0]) * _TO_UNIT[1]
