"""Convolutions in C as JAX sees them: three primitives that are each other's derivatives.

    convolve         (images, kernel)    -> made
    to_images        (gradients, kernel) -> images     made's gradient, with respect to the images
    to_kernel        (images, gradients) -> kernel     and with respect to the kernel

Each is linear in both of its arguments, and its derivative by one of them is another of the three. That is
all that JAX needs to know for forward mode, checkpoints and gradients of any order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from sherd.nn.native.library import kernels

# Columns are computed in vectors of so many numbers or half as many; what is missing is filled with zeros.
_VECTOR = 16
# Gradients of a kernel are summed in so many parts, as the C file has it.
_PARTS = 8

Shape = tuple[int, ...]


def convolve(images: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Convolve [batch, height, width, channels] with [size, size, channels, outputs], without padding.

    Images are floats or bytes, which are not scaled. Only for a CPU, and only where kernels are `available`.
    """
    made: jax.Array = _convolve.bind(images, _filled(kernel, 3), stride=stride)
    return made[..., : kernel.shape[3]]


def _filled(kernel: jax.Array, axis: int) -> jax.Array:
    missing = -kernel.shape[axis] % _VECTOR
    return jnp.pad(kernel, [(0, missing * (place == axis)) for place in range(4)]) if missing else kernel


def _made_shape(images: Any, kernel: Any, *, stride: int) -> Shape:
    sides = ((side - kernel.shape[0]) // stride + 1 for side in images.shape[1:3])
    return (images.shape[0], *sides, kernel.shape[3])


def _images_shape(gradients: Any, kernel: Any, *, stride: int, sides: tuple[int, int]) -> Shape:
    del stride
    return (gradients.shape[0], *sides, kernel.shape[2])


def _kernel_shape(images: Any, gradients: Any, *, stride: int, size: int) -> Shape:
    del stride
    return (size, size, images.shape[3], gradients.shape[3])


def _turned_kernel(gradients: Any, kernel: Any, made: Shape) -> list[Shape]:
    del gradients, made
    return [(*kernel.shape[:2], kernel.shape[3], kernel.shape[2])]


def _parts_of_kernel(images: Any, gradients: Any, made: Shape) -> list[Shape]:
    del gradients
    return [(min(_PARTS, images.shape[0]), *made)]


def _nothing(images: Any, kernel: Any, made: Shape) -> list[Shape]:
    del images, kernel, made
    return []


def _primitive(
    name: str, shape: Callable[..., Shape], scratch: Callable[[Any, Any, Shape], list[Shape]]
) -> Primitive:
    """A function of the C file; `scratch` is memory that it needs besides its result."""

    def abstract(one: Any, two: Any, **sizes: Any) -> ShapedArray:
        return ShapedArray(shape(one, two, **sizes), jnp.float32)

    def call(one: Any, two: Any, **sizes: Any) -> jax.Array:
        made = shape(one, two, **sizes)
        types = [jax.ShapeDtypeStruct(each, jnp.float32) for each in (made, *scratch(one, two, made))]
        results = jax.ffi.ffi_call(kernels().targets[name], types)(one, two, stride=np.int64(sizes["stride"]))
        first: jax.Array = results[0]
        return first

    @lru_cache
    def compiled(**sizes: Any) -> Any:
        return jax.jit(partial(found.bind, **sizes))

    def one_by_one(arguments: Any, axes: Any, **sizes: Any) -> tuple[jax.Array, int]:
        """Under `vmap`."""
        count = next(a.shape[axis] for a, axis in zip(arguments, axes) if axis is not None)
        given = [
            jnp.broadcast_to(a, (count, *a.shape)) if axis is None else jnp.moveaxis(a, axis, 0)
            for a, axis in zip(arguments, axes)
        ]
        return jax.lax.map(lambda pair: found.bind(*pair, **sizes), tuple(given)), 0

    found = Primitive(name)
    found.def_abstract_eval(abstract)
    found.def_impl(lambda one, two, **sizes: compiled(**sizes)(one, two))
    mlir.register_lowering(found, mlir.lower_fun(call, multiple_results=False), platform="cpu")
    batching.primitive_batchers[found] = one_by_one
    return found


_convolve = _primitive("sherd_convolve", _made_shape, _nothing)
_to_images = _primitive("sherd_convolve_images", _images_shape, _turned_kernel)
_to_kernel = _primitive("sherd_convolve_kernel", _kernel_shape, _parts_of_kernel)


def _images(gradients: Any, kernel: Any, like: Any, stride: int) -> jax.Array:
    _, height, width, channels = like.shape
    filled = _filled(kernel, 2)
    images: jax.Array = _to_images.bind(gradients, filled, stride=stride, sides=(height, width))
    return images[..., :channels]


def _kernel(images: Any, gradients: Any, like: Any, stride: int) -> jax.Array:
    kernel: jax.Array = _to_kernel.bind(images, gradients, stride=stride, size=like.shape[0])
    return kernel


# Each by its first and by its second argument, which is the one whose value is not known.
ad.defbilinear(
    _convolve,
    lambda given, images, kernel, *, stride: _images(given, kernel, images.aval, stride),
    lambda given, images, kernel, *, stride: _kernel(images, given, kernel.aval, stride),
)
ad.defbilinear(
    _to_images,
    lambda given, gradients, kernel, *, stride, sides: _convolve.bind(given, kernel, stride=stride),
    lambda given, gradients, kernel, *, stride, sides: _kernel(given, gradients, kernel.aval, stride),
)
ad.defbilinear(
    _to_kernel,
    lambda given, images, gradients, *, stride, size: _images(gradients, given, images.aval, stride),
    lambda given, images, gradients, *, stride, size: _convolve.bind(images, given, stride=stride),
)
