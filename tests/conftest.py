"""Shared by all tests: a quiet, repeatable JAX, and helpers for comparing trees."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
# Two emulated devices, as the tests of replication need.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
