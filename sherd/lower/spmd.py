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
                return function(given, others, clock, jax.random.wrap_key_data(seed), index)

        sharded = jax.shard_map(
            replicated,
            mesh=self.mesh,
            in_specs=(given_specs, kept_specs, P(), P(), P(AXIS)),
            out_specs=out_specs,
            check_vma=False,
        )
        call = jax.jit(sharded, donate_argnums=0)

        def run(given: Any, others: Any, clock: Any, seed: Any, index: Any) -> tuple[Any, ...]:
            data = np.asarray(jax.random.key_data(seed))
            outputs: tuple[Any, ...] = call(
                self._global(given, given_specs),
                self._global(others, kept_specs),
                self._global(clock, P()),
                self._global(data, P()),
                self._global(index, P(AXIS)),
            )
            return jax.tree.map(lambda out: out.addressable_shards[0].data, outputs)

        return run

    def _global(self, tree: Any, specs: Any) -> Any:
        return jax.tree.map(self._declare, tree, specs)

    def _declare(self, local: Any, spec: P) -> Any:
        local = jax.device_put(local, self.mesh.local_devices[0])
        shape = list(local.shape)
        for axis, name in enumerate(spec):
            if name is not None:
                shape[axis] *= self.mesh.size
        sharding = NamedSharding(self.mesh, spec)
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, [local])


def _specs(values: dict[int, Value], ref: Ref) -> Any:
    """Which axis of every leaf is spread over the replicas."""
    axes = ref.pick(values[ref.value].axes_tree())
    return jax.tree.map(lambda axis: P() if axis < 0 else P(*(None,) * axis, AXIS), axes)
