"""Kernels in C, for what XLA is slow at on a CPU: compiled for this processor when they are first needed.

In come a C file and a compiler, out go JAX primitives with derivatives. Where there is no compiler, or the
processor is another one, `available` says so, and whoever asked has a way of its own.
"""
