"""From an id to a graph environment: `graph/...` are ours, `gymnax/...` and `brax/...` come by adapters."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from sherd.errors import UsageError, missing_extra, nearest
from sherd.spaces import GraphEnv

_OWN = (
    "graph/Acrobot-v1",
    "graph/CartPole-v1",
    "graph/LegalMoves-v0",
    "graph/MountainCar-v0",
    "graph/Pendulum-v1",
    "graph/StatelessCartPole-v1",
)


def names() -> list[str]:
    """The ids of our own graph environments.

    >>> "graph/CartPole-v1" in names()
    True
    """
    return list(_OWN)


def make(id: str) -> GraphEnv:
    """The graph environment of this id; packages and JAX are imported only when it needs them.

    >>> make("graph/Pendulum-v1").spec.action
    Box(-2.0, 2.0, (1,), float32)
    """
    source, _, name = id.partition("/")
    if source in ("gymnax", "brax"):
        return _adapted(source, name, id)
    if id not in _OWN:
        raise UsageError(
            f"There is no graph environment {id!r}; {nearest(id, _OWN)}\n"
            "  fix: use one of sherd.envs.graph.registry.names(), or a gymnax/... or brax/... id"
        )
    from sherd.envs.graph import classic, diagnostic

    own: dict[str, Callable[[], GraphEnv]] = {
        "graph/Acrobot-v1": classic.Acrobot,
        "graph/CartPole-v1": classic.CartPole,
        "graph/LegalMoves-v0": diagnostic.LegalMoves,
        "graph/MountainCar-v0": classic.MountainCar,
        "graph/Pendulum-v1": classic.Pendulum,
        "graph/StatelessCartPole-v1": diagnostic.StatelessCartPole,
    }
    return own[id]()


def _adapted(package: str, name: str, id: str) -> GraphEnv:
    """An environment of an optional package."""
    if importlib.util.find_spec(package) is None:
        raise missing_extra(package, "graph-envs", id)
    if package == "gymnax":
        from sherd.envs.graph.gymnax_adapter import GymnaxEnv

        return GymnaxEnv(name)
    from sherd.envs.graph.brax_adapter import BraxEnv

    return BraxEnv(name)
