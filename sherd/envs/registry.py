"""From what a user names to an environment: ids of every source, the user's objects, `module:callable`.

Ids that begin with `graph/`, `gymnax/` or `brax/` are pure JAX and are loaded by the graph room; all others
are simulators. Nothing here imports JAX unless a graph environment is asked for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Literal

import gymnasium

from sherd.envs.host import atari, cheetah, envpool, minatar, vectorised
from sherd.envs.host import gymnasium as loop
from sherd.envs.host.faulty_leaf import Unsound
from sherd.errors import UsageError, nearest
from sherd.imports import load_object
from sherd.spaces import EnvSpec, GraphEnv, HostEnv, require_supported

Kind = Literal["host", "graph"]

_GRAPH_PREFIXES = ("graph/", "gymnax/", "brax/")
# Gymnasium's own JAX ports; Sherd's `graph/` ids do their work better, so they are never suggested.
_UNSUGGESTED = ("phys2d/", "tabular/", "GymV")

_kinds: dict[Any, Kind] = {}
_specs: dict[Any, EnvSpec] = {}


def kind_of(env: Any) -> Kind:
    """Whether an environment runs on the host or inside the XLA program.

    >>> kind_of("CartPole-v1"), kind_of("graph/CartPole-v1"), kind_of("brax/ant")
    ('host', 'graph', 'graph')
    """
    if isinstance(env, str) and env.startswith(_GRAPH_PREFIXES):
        return "graph"
    target = load(env)
    if isinstance(target, str) or _is_env_class(target):
        return "host"
    if _is_graph(target):
        return "graph"
    if not callable(target):
        raise _not_an_environment(env)
    return _remembered(_kinds, target, lambda: _kind_of_product(name_of(env), target))


def describe(env: Any, **options: Any) -> EnvSpec:
    """What an environment looks like, from building one and reading its spaces.

    >>> spec = describe("CartPole-v1")
    >>> spec.observation.shape, spec.action, spec.kind
    ((4,), Discrete(2), 'host')
    """
    key = (env, repr(sorted(options.items())))
    return _remembered(_specs, key, lambda: _describe(env, options))


def make_host(env: Any, num_envs: int, seed: int, first_index: int = 0, **options: Any) -> HostEnv:
    """A batch of simulators, of which row i is environment `first_index + i` of the run.

    >>> batch = make_host("CartPole-v1", 4, seed=0)
    >>> batch.num_envs
    4
    """
    if num_envs < 1:
        raise UsageError(f"{name_of(env)}: num_envs is {num_envs}.\n  fix: ask for one or more")
    if kind_of(env) == "graph":
        raise UsageError(f"{name_of(env)} is a graph environment.\n  fix: use make_graph")
    target = load(env)
    if not isinstance(target, str):
        name = name_of(env)
        factory = functools.partial(loop.call_factory, name, target, **options)
        return loop.LoopEnv(name, factory, num_envs, seed, first_index)
    for source in (atari, envpool, minatar):
        if target.startswith(source.PREFIX):
            return source.make(target, num_envs, seed, first_index, **options)
    if loop.registered(target) is None:
        raise _unknown(target)
    batch = vectorised.make(target, num_envs, seed, first_index, **options)
    if batch is not None:
        return batch
    factory = functools.partial(loop.make_one, target, **options)
    batched = loop.registered(target).entry_point == cheetah.ENTRY_POINT  # type: ignore[union-attr]
    adapter = cheetah.Cheetahs if batched else loop.LoopEnv
    return adapter(target, factory, num_envs, seed, first_index)


def make_graph(env: Any, **options: Any) -> GraphEnv:
    """One environment as pure JAX functions, from its id, the object itself or a callable."""
    if kind_of(env) == "host":
        raise UsageError(
            f"{name_of(env)} is a simulator, not a graph environment.\n"
            "  fix: use make_host, or an id that begins with graph/, gymnax/ or brax/"
        )
    target = load(env)
    if isinstance(target, str):
        return _graph_by_id(target, options)
    if not _is_graph(target) or isinstance(target, type):
        # A class may have the spec of what it makes, whose id is not what the user wrote.
        name = env if isinstance(env, str) else getattr(env, "__qualname__", name_of(env))
        return loop.call(name, target, **options)
    if options:
        raise UsageError(f"{name_of(env)} is already built, so it takes no options: {sorted(options)}")
    return target


def name_of(env: Any) -> str:
    """The name under which messages speak of an environment.

    >>> name_of("CartPole-v1"), name_of(dict)
    ('CartPole-v1', 'dict')
    """
    if isinstance(env, str):
        return env
    if _is_graph(env):
        return str(env.spec.id)
    # functools.partial has no name of its own.
    named = getattr(env, "func", env)
    return str(getattr(named, "__qualname__", type(named).__name__))


def load(env: Any) -> Any:
    """The object that `module:name` names; anything else, Gymnasium's `module:Id-v0` too, as it is."""
    if not isinstance(env, str) or ":" not in env:
        return env
    try:
        return load_object(env)
    except UsageError:
        # The module may have registered an id of that name with Gymnasium when it was imported.
        if env.partition(":")[0] in sys.modules and loop.registered(env) is not None:
            return env
        raise


def _describe(env: Any, options: dict[str, Any]) -> EnvSpec:
    if kind_of(env) == "host":
        batch = make_host(env, 1, 0, **options)
        batch.close()
        return batch.spec
    graph_env = make_graph(env, **options)
    spec = graph_env.spec
    require_supported(spec.id, "observation", spec.observation)
    require_supported(spec.id, "action", spec.action)
    # Those that have an id are ours or a library's, and tracing brax takes a while.
    if not isinstance(load(env), str):
        _require_sound(graph_env)
    return spec


def _require_sound(env: GraphEnv) -> None:
    from sherd.envs.graph.faults import graph_faults

    found = list(graph_faults(env))
    if found:
        raise Unsound(found)


def _remembered(memory: dict[Any, Any], key: Any, compute: Callable[[], Any]) -> Any:
    try:
        hash(key)
    except TypeError:
        return compute()
    if key not in memory:
        memory[key] = compute()
    return memory[key]


def _is_graph(env: Any) -> bool:
    return getattr(getattr(env, "spec", None), "kind", None) == "graph" and hasattr(env, "step")


def _is_env_class(env: Any) -> bool:
    return isinstance(env, type) and issubclass(env, gymnasium.Env)


def _kind_of_product(name: str, factory: Callable[[], Any]) -> Kind:
    try:
        product = factory()
    except Exception:
        # Making the batch calls it again, and reports what it raised.
        return "host"
    if _is_graph(product):
        return "graph"
    if hasattr(product, "close"):
        product.close()
    return "host"


def _not_an_environment(env: Any) -> UsageError:
    if isinstance(env, gymnasium.Env):
        return UsageError(
            f"{env} is one environment, and Sherd needs as many as it likes.\n"
            "  fix: pass a callable that returns a new one, for instance its class"
        )
    return UsageError(
        f"{env!r} is not an environment.\n"
        "  fix: pass an id, a callable that returns a gymnasium.Env, or a graph environment"
    )


def _graph_by_id(env_id: str, options: dict[str, Any]) -> GraphEnv:
    from sherd.envs.graph import registry as graph_registry

    if options:
        raise UsageError(
            f"{env_id} takes no options, but was given {sorted(options)}.\n"
            "  fix: build the environment yourself and pass the object"
        )
    return graph_registry.make(env_id)


def _unknown(env_id: str) -> UsageError:
    from sherd.envs.graph import registry as graph_registry

    games = [*atari.names(), *minatar.names()]
    # ale_py also registers the old unprocessed ids, which would always lie nearer than the one to use. Of
    # others only the newest version: Gymnasium registers old ones too that it no longer contains.
    newest = {
        (spec.namespace, spec.name): name
        for name, spec in gymnasium.registry.items()
        if not name.startswith(_UNSUGGESTED) and not str(spec.entry_point).startswith(("ale_py", "minatar"))
    }
    known = [*newest.values(), *graph_registry.names(), *games]
    return UsageError(f"there is no environment {env_id!r}; {nearest(env_id, known)}")
