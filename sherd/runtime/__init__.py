"""Where a run's results go: the terminal, the run directory, TensorBoard, memory.

Comes in: one row of numbers per training iteration, and the trees worth keeping. Goes out: files and text.
May import errors and spaces. This package imports nothing itself, and none of its modules import JAX until
a tree is saved: a process that only drives simulators may report events too.
"""
