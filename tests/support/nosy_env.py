"""A CartPole that notes what kind of process it is stepped in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import gymnasium


def resident() -> int:
    """Bytes of memory this process holds; rusage would count the parent's, from before exec."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def make() -> gymnasium.Env:
    """An environment; what was found goes to the directory that NOSY_ENV names."""
    where = os.environ.get("NOSY_ENV")
    if where:
        found = {
            "jax": "jax" in sys.modules,
            "megabytes": resident() / 1e6,
            "parent": os.getppid(),
        }
        Path(where, f"{os.getpid()}.json").write_text(json.dumps(found))
    return gymnasium.make("CartPole-v1")
