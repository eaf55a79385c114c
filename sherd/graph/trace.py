"""Trace: run an author's loop once with handles that record, and get its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from sherd.algorithms.ranges import require_ranges
from sherd.author.algorithm import Algorithm, call_with_handles
from sherd.author.eager import begin_cells
from sherd.author.environments import abstract_begin, abstract_stepping
from sherd.author.handles import make_handles
from sherd.author.keys import run_key
from sherd.author.stage import active
from sherd.errors import SherdError, Source
from sherd.graph.interrupts import interrupts_kept
from sherd.graph.ir import Cell, Graph
from sherd.graph.prune import prune, renumber
from sherd.graph.reads import recording, unread_fields, unused_values
from sherd.graph.shapes import explain_loop, only_new_garbage
from sherd.graph.tracer import Tracer
from sherd.spaces import EnvSpec


def trace(algorithm: Algorithm, spec: EnvSpec, envs: int = 8) -> Graph:
    """Record one training iteration of an algorithm on `envs` environments."""
    require_ranges(algorithm)
    watched, read = recording(algorithm.bind(spec))
    with interrupts_kept():
        graph = _record(watched, spec, envs, watched.loop, {})
        if watched.playable():
            _record(watched, spec, envs, _playing(watched, 1), graph.shapes)
    warnings = (*unread_fields(algorithm, read), *unused_values(graph))
    return replace(graph, warnings=warnings)


def trace_again(algorithm: Algorithm, spec: EnvSpec, envs: int, shapes: dict[Any, Any]) -> Graph:
    """The graph that another process has traced and checked, whose `shapes` are those given.

    Finding out shapes is nearly all of the time that tracing takes. What is not among them is found out.
    """
    bound = algorithm.bind(spec)
    return _record(bound, spec, envs, bound.loop, shapes)


def trace_play(algorithm: Algorithm, spec: EnvSpec, envs: int, steps: int) -> Graph:
    """Record `steps` steps of the algorithm's `play`, for evaluation."""
    bound = algorithm.bind(spec)
    return _record(bound, spec, envs, _playing(bound, steps), {})


def _playing(algorithm: Algorithm, steps: int) -> Callable[..., None]:
    def loop(env: Any, learner: Any, state: Any, replay: Any) -> None:
        handles = {"env": env, "learner": learner, "state": state, "replay": replay}
        for _ in env.steps(steps):
            call_with_handles(algorithm.play, handles)

    return loop


def _record(
    algorithm: Algorithm, spec: EnvSpec, envs: int, loop: Callable[..., None], shapes: dict[Any, Any]
) -> Graph:
    tracer = Tracer(envs, shapes)
    source = _source_of(loop)
    if "cells" not in shapes:
        shapes["cells"] = tuple(_cell_types(algorithm, spec, count) for count in (envs, 2 * envs))
    small, large = shapes["cells"]
    declared = tuple(name for name in small if name not in ("env", "learner"))
    order = ("env", "learner", *declared)
    root = tracer.begin({name: (small[name], large[name]) for name in order}, source)
    handles = make_handles(tracer, algorithm, declared, abstract_stepping(spec))
    try:
        with active(tracer), only_new_garbage():
            call_with_handles(loop, handles)
    except SherdError:
        raise
    except Exception as error:
        raise explain_loop(error, source) from error
    scope = tracer.finish(root, source)
    cells = tuple(
        Cell(name, first._type, tracer.values[first._ref.value].env_axes, tracer.late_cells.get(name))
        for name, first in root.items()
    )
    iteration, total = tracer.iteration._ref.value, tracer.total._ref.value
    name = type(algorithm).__name__
    graph = Graph(name, spec, envs, cells, scope, tracer.values, iteration, total, shapes=shapes)
    return renumber(prune(graph))


def _cell_types(algorithm: Algorithm, spec: EnvSpec, envs: int) -> dict[str, Any]:
    order: list[str] = []

    def begin() -> dict[str, Any]:
        cells = begin_cells(algorithm, abstract_begin(spec, envs), run_key(0))
        order.extend(cells)
        return cells

    types = jax.eval_shape(begin)
    return {name: types[name] for name in order}  # JAX sorts keys; people read them as declared


def _source_of(loop: Callable[..., None]) -> Source:
    code = getattr(loop, "__code__", None) or getattr(getattr(loop, "__func__", None), "__code__", None)
    return Source(code.co_filename, code.co_firstlineno) if code else Source("<unknown>", 0)
