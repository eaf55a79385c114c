"""How JAX is set up for a run; to be called before anything touches a device."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import jax
from jax.experimental import multihost_utils

from sherd.caches import cache_folder


def prepare_jax() -> None:
    """Settings that suit Sherd, wherever the user has not chosen otherwise.

    Acting is a short program whose result the simulators wait for: on a CPU, handing it to another thread
    costs several times its own run time (measured: 260 us against 65 us a call). And a program that was
    compiled once need not be compiled again by the next run.
    """
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder("xla")))
        # Of some thirty programs of a run most are small; compiling those anew took a second and a half.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def use_devices(count: int) -> None:
    """Make the CPU appear as several devices; only possible before JAX has started."""
    jax.config.update("jax_num_cpu_devices", count)


def join_processes(coordinator: str, count: int, number: int) -> None:
    """Make this process one of several that compute together; only possible before JAX has started."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != "0":  # JAX itself sets it to 1
        _keep_standard_error_to_python()
    with _no_chatter():
        # Of several accelerators in this machine each process takes its own.
        jax.distributed.initialize(coordinator, count, number, local_device_ids=[number])
        multihost_utils.sync_global_devices("sherd")  # the first collective is what connects


def _keep_standard_error_to_python() -> None:
    """Libraries in C++ lose it: where the first process dies, JAX lets the others shout and abort."""
    sys.stderr.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115 - for good
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


@contextlib.contextmanager
def _no_chatter() -> Iterator[None]:
    """Gloo announces its connections on standard output, which belongs to results."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
