"""Acting in tiles: a fixed number of rows at a time, so that results do not depend on how rows are batched.

A matrix product may be summed in another order for another number of rows, as wide layers are on a CPU.
Computed in tiles, every product has the same shape wherever the environments are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from sherd.graph.ir import Graph, Node, Ref, Scope, is_ref


def tile_acting(graph: Graph, rows: int) -> Graph:
    """The same graph with every act node computed `rows` environments at a time; 0 leaves it as it is."""
    return replace(graph, root=_tiled(graph, graph.root, rows)) if rows else graph


def _tiled(graph: Graph, scope: Scope, rows: int) -> Scope:
    body: list[Node | Scope] = []
    for item in scope.body:
        if isinstance(item, Scope):
            body.append(_tiled(graph, item, rows))
        else:
            by_row = all(axis == 0 for axis in graph.values[item.output].env_axes)
            body.append(_tile(graph, item, rows) if item.role == "act" and by_row else item)
    return replace(scope, body=tuple(body))


def _tile(graph: Graph, node: Node, rows: int) -> Node:
    split = jax.tree.map(lambda leaf: _has_rows(graph, leaf), node.inputs, is_leaf=is_ref)
    function = in_tiles(node.op.function, (*split, True) if node.op.key == "env" else split, rows)
    return replace(node, op=replace(node.op, function=function))


def _has_rows(graph: Graph, leaf: Any) -> Any:
    """For every array of an input, whether it has a row for each environment."""
    if not isinstance(leaf, Ref):
        return False
    axes = leaf.pick(graph.values[leaf.value].axes_tree())
    return jax.tree.map(lambda axis: axis == 0, axes)


def in_tiles(function: Callable[..., Any], split: Any, rows: int) -> Callable[..., Any]:
    """A function of rows, computed `rows` at a time; `split` says which arguments have rows.

    >>> in_tiles(lambda x, scale: x * scale, (True, False), 2)(jnp.arange(3), 10).tolist()
    [0, 10, 20]
    """

    def tiled(*args: Any) -> Any:
        flat, treedef = jax.tree.flatten(args)
        has_rows = jax.tree.leaves(split)
        count = next(leaf.shape[0] for leaf, mine in zip(flat, has_rows) if mine)
        tiles = -(-count // rows)

        def cut(leaf: Any) -> Any:
            # What is missing in the last tile repeats the last row; it is dropped again below.
            padded = leaf[jnp.minimum(jnp.arange(tiles * rows), count - 1)]
            return padded.reshape(tiles, rows, *leaf.shape[1:])

        def one(tile: list[Any]) -> Any:
            parts = iter(tile)
            merged = [next(parts) if mine else leaf for leaf, mine in zip(flat, has_rows)]
            return function(*jax.tree.unflatten(treedef, merged))

        outputs = jax.lax.map(one, [cut(leaf) for leaf, mine in zip(flat, has_rows) if mine])
        return jax.tree.map(lambda out: out.reshape(tiles * rows, *out.shape[2:])[:count], outputs)

    return tiled
