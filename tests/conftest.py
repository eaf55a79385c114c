"""Shared by all tests: a quiet, repeatable JAX, and helpers for comparing trees."""

import os
import sys
import tempfile
from collections.abc import Iterator

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
# Two emulated devices, as the tests of replication need.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
# Many tests start processes that compile the same programs: what one has compiled, the next one loads.
_CACHE = os.path.join(tempfile.gettempdir(), f"sherd-tests-{os.getuid()}")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _CACHE)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Compiled programs of a file are no use to the next: gigabytes of them make every collection slow."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
