"""Compile the C file for this processor, once, and let XLA call what is in it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax

from sherd.caches import cache_folder

FUNCTIONS = ("sherd_convolve", "sherd_convolve_images", "sherd_convolve_kernel")
_SOURCE = Path(__file__).with_name("convolution.c")
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-pthread")
_NEEDED = ("avx2", "fma")
_TIME_LIMIT = 120.0  # seconds; it takes one or two


def available() -> bool:
    """Whether there are kernels in C: on x86-64 with AVX2, if `cc` works and SHERD_NATIVE is not 0."""
    return bool(targets())


@functools.cache
def targets() -> dict[str, str]:
    """How XLA knows each function; nothing if they cannot be compiled here."""
    path = build()
    if path is None:
        return {}
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return {}
    # XLA keeps compiled programs by the names of what they call, so that another version has another name.
    names = {function: f"{function}_{path.stem}" for function in FUNCTIONS}
    for function, name in names.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, function)), platform="cpu")
    return names


def build() -> Path | None:
    """The library in the user's cache, made if it is not there; None if it cannot be."""
    compiler, flags = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"), _processor()
    if os.environ.get("SHERD_NATIVE") == "0" or not compiler or not set(_NEEDED) <= set(flags.split()):
        return None
    # Machines that differ may share a cache.
    sources = [file.read_text() for file in sorted(_SOURCE.parent.glob("*.[ch]"))]
    parts = [*sources, flags, jax.lib.__version__, *_FLAGS]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    path = cache_folder("native") / f"{_SOURCE.stem}_{key}.so"
    if path.exists():
        return path
    command = [compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", str(_SOURCE), "-o"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder, path.name)
            subprocess.run([*command, str(made)], check=True, capture_output=True, timeout=_TIME_LIMIT)
            made.replace(path)  # several processes may do so at the same time
    except (OSError, subprocess.SubprocessError):
        return None
    return path


def _processor() -> str:
    """What this processor can do; nothing where that is not known, as it is on Linux."""
    info = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not info.exists():
        return ""
    return next((line.split(":")[1] for line in info.read_text().splitlines() if line[:5] == "flags"), "")
