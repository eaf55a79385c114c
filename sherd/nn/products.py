"""Matrix products whose gradients are products that a CPU is good at.

The gradient of a layer's weights is `x.T @ g`, over as many rows as there are samples. XLA's CPU product
reads a transposed operand three times slower than it multiplies. It is faster to write out the narrower of
the two transposed first. Forward mode, `vmap` and second derivatives work as for `@`. Other processors keep
the plain product.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

# With fewer rows a gradient takes microseconds either way, unless one of the two is narrow: 128 rows of 64
# and of 2 take 6.3 us, transposed 1.4 (8 updates of DQN: 1,127 us, then 1,072). The conformance tests, which
# compare bit by bit, have fewer: how XLA rounds a product whose operand was transposed first depends on what
# is around it.
_MANY_ROWS, _MANY_NARROW_ROWS = 256, 128
# A head: the gradient of its weights has few columns, which XLA's product is bad at. From 256 rows of 256
# features to 6 outputs it takes 126 us, transposed 16; to 32 outputs 90 and 63, to 64 outputs 179 and 155.
_FEW_OUTPUTS = 32
# Many more inputs than outputs: the gradient of 576 inputs and 64 outputs over 784 rows takes 1.1 ms with the
# inputs first, 0.8 with the outputs.
_WIDE = 4


@jax.custom_jvp
def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x @ kernel` for [rows, width] and [width, outputs].

    >>> jax.grad(lambda kernel: product(jnp.ones((9, 2)), kernel).sum())(jnp.ones((2, 3))).tolist()
    [[9.0, 9.0, 9.0], [9.0, 9.0, 9.0]]
    """
    return x @ kernel


def _tangent(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    (x, kernel), (x_dot, kernel_dot) = primals, tangents
    parts = []
    if not isinstance(x_dot, SymbolicZero):
        parts.append(x_dot @ kernel)
    if not isinstance(kernel_dot, SymbolicZero):
        parts.append(jax.lax.platform_dependent(x, kernel_dot, cpu=_by_kernel, default=jnp.matmul))
    result = product(x, kernel)
    return result, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(result)


product.defjvp(_tangent, symbolic_zeros=True)


def _by_kernel(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`x @ kernel`, written so that its transpose with respect to the kernel transposes what is narrower.

    With hardly more rows than columns a copy costs what it saves, but for a head; there it is enough that the
    gradient has the fewer outputs first. The barriers keep XLA from folding the transposition back into the
    product.
    """
    rows, (width, outputs), keep = x.shape[0], kernel.shape, jax.lax.optimization_barrier
    many = _MANY_ROWS if width == outputs else _MANY_NARROW_ROWS
    hardly_more = rows < max(2 * width, 2 * outputs)
    if rows < many or (hardly_more and outputs > _FEW_OUTPUTS):
        if rows >= many and width >= _WIDE * outputs:
            return jax.lax.dot_general(x, keep(kernel.T), (((1,), (1,)), ((), ())))
        return x @ kernel
    if width <= outputs:
        return keep(x.T).T @ keep(kernel)
    return keep((x @ keep(kernel.T).T).T).T
