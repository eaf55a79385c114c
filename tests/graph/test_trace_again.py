"""What another process has traced is traced again without finding out shapes."""

import pytest

from sherd.algorithms import load_algorithm
from sherd.envs import describe
from sherd.graph import trace, trace_again, tracer
from sherd.runtime.parcel import packable


def test_the_graph_is_the_same_and_nothing_is_shaped(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, spec = load_algorithm("dqn")(), describe("CartPole-v1")
    graph = trace(algorithm, spec, 4)
    shapes = packable(graph.shapes)
    assert len(shapes) == len(graph.shapes) > 10

    def refuse(*_: object) -> None:
        raise AssertionError("shaped again")

    monkeypatch.setattr(tracer, "shape_of", refuse)
    assert str(trace_again(algorithm, spec, 4, shapes)) == str(graph)
    shapes.pop(next(key for key in shapes if key != "cells"))
    with pytest.raises(Exception, match="shaped again"):  # what did not travel is found out
        trace_again(algorithm, spec, 4, shapes)
