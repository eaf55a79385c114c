"""Shared by all tests: a quiet, repeatable JAX, and helpers for comparing trees."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
# Two emulated devices, as the tests of replication need. Most of the tests' time is compiling, and it takes
# less than half as long if XLA optimises little; `make thorough` has it do what it does for users.
_FLAGS = "--xla_force_host_platform_device_count=2"
if not os.environ.get("SHERD_THOROUGH"):
    _FLAGS += " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    _FLAGS += " --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", _FLAGS)
# Many tests start processes that compile the same programs: what one has compiled, the next one loads.
_CACHE = os.path.join(tempfile.gettempdir(), f"sherd-tests-{os.getuid()}")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", _CACHE)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A shell without job control makes what it starts with `&` ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that in the end no test runs alone while the other core has none."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Compiled programs of a file are no use to the next: gigabytes of them make every collection slow."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
