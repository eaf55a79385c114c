"""Environments: an id or the user's own object comes in, a batch that follows one contract goes out.

`describe` tells what an environment looks like, `make_host` builds simulators in ordinary memory,
`make_graph` builds pure JAX environments, `check_env` finds what is wrong with one. May import
`sherd.errors` and `sherd.spaces` only; importing this room never imports JAX.
"""

from __future__ import annotations

from sherd.envs.check import Findings, Problem, check_env
from sherd.envs.registry import describe, kind_of, make_graph, make_host

__all__ = ["Findings", "Problem", "check_env", "describe", "kind_of", "make_graph", "make_host"]
