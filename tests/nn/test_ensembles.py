"""Several networks of one kind."""

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from sherd.algorithms import load_algorithm
from sherd.envs import describe


def operations(jaxpr: Jaxpr) -> Iterator[Any]:
    """Every operation of a program, those inside of others too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)):
            if isinstance(inner, ClosedJaxpr | Jaxpr):
                yield from operations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)


def test_no_weights_are_made_by_stacked_factorisations() -> None:
    # Two of them at once on two cores wait for each other for ever: SAC's did after some 200 times.
    algorithm = load_algorithm("sac")().bind(describe("Pendulum-v1"))
    program = jax.make_jaxpr(algorithm.init)(jax.random.key(0)).jaxpr
    factorisations = [each for each in operations(program) if each.primitive.name == "qr"]
    assert len(factorisations) > 4
    assert all(each.invars[0].aval.ndim == 2 for each in factorisations)
