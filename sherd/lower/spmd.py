"""Regions that several processes compute together: one program over all of them, each with its own shard.

Between calls every process holds plain local arrays; around a call they are declared to be shards of global
ones, which copies nothing. Reductions inside see all replicas (`jax.distributed`: gloo or NCCL).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from sherd.author import reduce
from sherd.graph.ir import Ref, Value
from sherd.lower.regions import Region

AXIS = "replicas"


def mesh_of_processes() -> Mesh:
    """One device of every process, in the order of the processes."""
    first = {device.process_index: device for device in reversed(jax.devices())}
    return Mesh(np.array([first[index] for index in sorted(first)]), (AXIS,))


@dataclass(frozen=True)
class Spmd:
    """How replicas compute together; `gradients` says whether they also average their gradients."""

    mesh: Mesh
    gradients: bool = True

    def compile(self, region: Region, values: dict[int, Value]) -> Callable[..., tuple[Any, ...]]:
        """A region as one call of all replicas."""
        function = region.function()
        given_specs = tuple(_specs(values, ref) for ref in region.donated)
        kept_specs = tuple(_specs(values, ref) for ref in region.kept)
        out_specs = tuple(_specs(values, Ref(output)) for output in region.outputs)

        def replicated(given: Any, others: Any, clock: Any, seed: Any, index: Any) -> tuple[Any, ...]:
            with reduce.replicas(AXIS, gradients=self.gradients):
                return function(given, others, clock, seed, index)

        sharded = jax.shard_map(
            replicated,
            mesh=self.mesh,
            in_specs=(given_specs, kept_specs, P(), P(), P(AXIS)),
            out_specs=out_specs,
            check_vma=False,
        )
        call = jax.jit(sharded, donate_argnums=0)
        specs = jax.tree.leaves((given_specs, kept_specs, P(), P(), P(AXIS)), is_leaf=_is_spec)
        shardings = [NamedSharding(self.mesh, spec) for spec in specs]

        def run(given: Any, others: Any, clock: Any, seed: Any, index: Any) -> tuple[Any, ...]:
            local = (given, others, clock, seed, index)
            outputs: tuple[Any, ...] = call(*self._declare(local, shardings))
            return jax.tree.map(lambda out: out.addressable_data(0), outputs)

        return run

    def _declare(self, tree: Any, shardings: list[NamedSharding]) -> Any:
        leaves, treedef = jax.tree.flatten(tree)
        here = jax.device_put(leaves, self.mesh.local_devices[0])
        return jax.tree.unflatten(treedef, [self._declare_leaf(*each) for each in zip(here, shardings)])

    def _declare_leaf(self, local: jax.Array, sharding: NamedSharding) -> jax.Array:
        shape = list(local.shape)
        for axis, name in enumerate(sharding.spec):
            if name is not None:
                shape[axis] *= self.mesh.size
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [local])


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, P)


def _specs(values: dict[int, Value], ref: Ref) -> Any:
    """Which axis of every leaf is spread over the replicas."""
    axes = ref.pick(values[ref.value].axes_tree())
    return jax.tree.map(lambda axis: P() if axis < 0 else P(*(None,) * axis, AXIS), axes)
