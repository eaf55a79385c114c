"""Arrays packed into one vector of 32-bit words, on their way into and out of a small compiled program.

With a handful of environments a call to act costs more than its arithmetic: XLA's runtime takes half a
microsecond or more for every array that goes in and two for every one that comes out. So what stays the same
during a loop and is small, such as biases, goes in as one vector, made when the loop begins, and what comes
out for every environment does so as one vector too. Matrices stay apart, since unpacking copies. Barriers
around the packing leave XLA the same program in between, so that numbers do not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sherd.graph.ir import Ref, Value

_WORDS = ("float32", "int32", "uint32")
# Elements of an input. A matrix would need a kernel of its own to be unpacked, and where more than a handful
# of kernels could begin at the same time XLA gives half of them to another thread: waking it takes longer
# than all of them (measured: acting for 8 half cheetahs 143 us, with matrices apart 45 us).
_SMALL = 256
_NARROW = 64  # elements of an input or output for each environment


@dataclass(frozen=True)
class Layout:
    """Where arrays lie in a vector."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]

    @property
    def size(self) -> int:
        """Words in all."""
        return sum(map(math.prod, self.shapes))

    def pack(self, arrays: Sequence[Any]) -> jax.Array:
        """The vector, in a compiled program.

        >>> layout = Layout(((), (2,)), (np.dtype("float32"), np.dtype("int32")))
        >>> layout.pack([jnp.float32(0), jnp.arange(2)]).tolist()
        [0, 0, 1]
        """
        words = [jax.lax.bitcast_convert_type(array, jnp.int32).ravel() for array in arrays]
        return jnp.concatenate(words) if words else jnp.zeros(0, jnp.int32)

    def unpack(self, words: jax.Array) -> list[jax.Array]:
        """The arrays, in a compiled program."""
        parts = zip(self._split(words), self.dtypes, self.shapes)
        return [jax.lax.bitcast_convert_type(part, dtype).reshape(shape) for part, dtype, shape in parts]

    def views(self, words: np.ndarray) -> list[np.ndarray]:
        """The arrays as views of vectors [..., size], without a copy.

        >>> layout = Layout(((1, 2),), (np.dtype("int32"),))
        >>> layout.views(np.arange(6, dtype=np.int32).reshape(3, 2))[0].shape
        (3, 1, 2)
        """
        lead = words.shape[:-1]
        parts = zip(self._split(words), self.dtypes, self.shapes)
        return [part.view(dtype).reshape(lead + shape) for part, dtype, shape in parts]

    def _split(self, words: Any) -> list[Any]:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes]).tolist()
        return [words[..., low:high] for low, high in zip([0, *ends], ends)]


class Constants:
    """Values that stay the same during a loop: packed when it begins, unpacked in every call."""

    def __init__(self, refs: Sequence[Ref]) -> None:
        self.refs = list(refs)
        self._layout: Layout | None = None

    def pack(self, store: dict[int, Any], *more: Any) -> tuple[jax.Array, list[Any]]:
        """What a call is given: a vector, and what is too large for it. `more` must be small."""
        values = tuple(ref.pick(store[ref.value]) for ref in self.refs)
        leaves, treedef = jax.tree.flatten((values, more))
        if self._layout is None:
            arrays = [leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for leaf in leaves]
            self._treedef = treedef
            self._small = [str(array.dtype) in _WORDS and array.size <= _SMALL for array in arrays]
            small = [array for array, is_small in zip(arrays, self._small) if is_small]
            dtypes = tuple(np.dtype(array.dtype) for array in small)
            self._layout = Layout(tuple(array.shape for array in small), dtypes)
            pack = self._layout.pack
            self._pack = jax.jit(lambda small, foreign: (pack(small), foreign))
        small = [leaf for leaf, is_small in zip(leaves, self._small) if is_small]
        large = [leaf for leaf, is_small in zip(leaves, self._small) if not is_small]
        # Parameters from another process are NumPy arrays: put on the device once, not with every call, and
        # by a program, which takes less than half of the time of JAX's function for it.
        words, put = self._pack(small, [leaf for leaf in large if not isinstance(leaf, jax.Array)])
        there = iter(put)
        return words, [leaf if isinstance(leaf, jax.Array) else next(there) for leaf in large]

    def unpack(self, words: jax.Array, large: list[Any]) -> tuple[dict[Ref, Any], tuple[Any, ...]]:
        """In the compiled program: the values by their references, and `more`."""
        if self._layout is None:
            raise RuntimeError("nothing was packed")
        sources = {True: iter(jax.lax.optimization_barrier(self._layout.unpack(words))), False: iter(large)}
        values, more = jax.tree.unflatten(self._treedef, [next(sources[small]) for small in self._small])
        return dict(zip(self.refs, values)), more


class Results:
    """What a program computes for each of `rows` environments, packed but for the wide and the odd."""

    def __init__(
        self, outputs: Iterable[int], values: dict[int, Value], rows: int, apart: Iterable[Ref] = ()
    ) -> None:
        self._outputs = list(outputs)
        types = tuple(values[output].type for output in self._outputs)
        leaves, self._treedef = jax.tree.flatten(types)
        axes = [axis for output in self._outputs for axis in values[output].env_axes]
        self._numbers = jax.tree.unflatten(self._treedef, range(len(leaves)))
        given = {number for ref in apart for number in self.leaves_of(ref)}
        self.apart = [n for n, pair in enumerate(zip(leaves, axes)) if n in given or not _packs(*pair)]
        packed = [leaf for number, leaf in enumerate(leaves) if number not in self.apart]
        shapes = tuple((rows, *leaf.shape[1:]) for leaf in packed)
        self.layout = Layout(shapes, tuple(np.dtype(leaf.dtype) for leaf in packed))
        self._count = len(leaves)

    def leaves_of(self, ref: Ref) -> list[int]:
        """The numbers of the leaves that a reference leads to; none if it leads elsewhere."""
        if ref.value not in self._outputs:
            return []
        return jax.tree.leaves(ref.pick(self._numbers[self._outputs.index(ref.value)]))

    def pick(self, ref: Ref, leaves: list[Any]) -> Any:
        """What a reference leads to."""
        numbers = ref.pick(self._numbers[self._outputs.index(ref.value)])
        return jax.tree.map(lambda number: leaves[number], numbers)

    def pack(self, outputs: tuple[Any, ...]) -> tuple[jax.Array, list[Any]]:
        """In the compiled program: the vector, and what stays apart."""
        leaves = jax.tree.leaves(outputs)
        packed = [leaf for number, leaf in enumerate(leaves) if number not in self.apart]
        words = self.layout.pack(jax.lax.optimization_barrier(packed))
        return words, [leaves[number] for number in self.apart]

    def views(self, words: np.ndarray) -> list[Any]:
        """All leaves as views of vectors; None for what is apart."""
        packed = iter(self.layout.views(words))
        return [None if number in self.apart else next(packed) for number in range(self._count)]

    def joined(self, leaves: list[Any], apart: list[Any]) -> tuple[Any, ...]:
        """The outputs from their leaves, and from what was apart."""
        if apart:
            leaves = list(leaves)
            for number, array in zip(self.apart, apart):
                leaves[number] = array
        return jax.tree.unflatten(self._treedef, leaves)


def _packs(leaf: Any, axis: int | None) -> bool:
    """Whether a leaf of a type has the environments first, 32-bit words, and few of them."""
    return axis == 0 and str(leaf.dtype) in _WORDS and math.prod(leaf.shape[1:]) <= _NARROW


def is_narrow(dtype: Any, shape: tuple[int, ...]) -> bool:
    """Whether an input of this shape, environments first, is to be packed; flags are packed as numbers.

    >>> is_narrow("bool", (1,)), is_narrow("float32", (8, 17)), is_narrow("uint8", (1, 84, 84, 4))
    (True, True, False)
    """
    return str(dtype) in (*_WORDS, "bool") and math.prod(shape[1:]) <= _NARROW
