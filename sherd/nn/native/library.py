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
from typing import NamedTuple

import jax

from sherd.caches import cache_folder

FUNCTIONS = ("sherd_convolve", "sherd_convolve_images", "sherd_convolve_kernel")
_SOURCE = Path(__file__).with_name("convolution.c")
_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC", "-pthread")
_NEEDED = ("avx2", "fma")
_TIME_LIMIT = 120.0  # seconds; it takes one or two


class Unavailable(Exception):
    """Why there are no kernels here; nothing if nobody wants any."""


class Kernels(NamedTuple):
    """How XLA knows each function; if it knows none, why not."""

    targets: dict[str, str]
    reason: str = ""


def available() -> bool:
    """Whether there are kernels in C: on x86-64 with AVX2, if `cc` works and SHERD_NATIVE is not 0."""
    return bool(kernels().targets)


def missed() -> str:
    """Why a network of this process does without kernels on a CPU; nothing if none does, or it is wanted."""
    asked = kernels.cache_info().currsize > 0
    return kernels().reason if asked and jax.default_backend() == "cpu" else ""


@functools.cache
def kernels() -> Kernels:
    """Compiled or found, loaded, and made known to XLA."""
    try:
        path = build()
        library = ctypes.CDLL(str(path))
    except (Unavailable, OSError) as reason:
        return Kernels({}, str(reason))
    # XLA keeps compiled programs by the names of what they call, so that another version has another name.
    names = {function: f"{function}_{path.stem}" for function in FUNCTIONS}
    for function, name in names.items():
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, function)), platform="cpu")
    return Kernels(names)


def build() -> Path:
    """The library in the user's cache, made if it is not there."""
    flags = _processor()
    if os.environ.get("SHERD_NATIVE") == "0":
        raise Unavailable("")
    if not set(_NEEDED) <= set(flags.split()):
        raise Unavailable("this is no x86-64 processor with AVX2 under Linux")
    # Machines that differ may share a cache.
    sources = [file.read_text() for file in sorted(_SOURCE.parent.glob("*.[ch]"))]
    parts = [*sources, flags, jax.lib.__version__, *_FLAGS]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    path = cache_folder("native") / f"{_SOURCE.stem}_{key}.so"
    if not path.exists():
        _compile(path)
    return path


def _compile(path: Path) -> None:
    """Make the library; several processes may do so at the same time."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise Unavailable("there is no C compiler (cc, gcc or clang)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", str(_SOURCE), "-o", str(made)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_TIME_LIMIT)
        except subprocess.SubprocessError as error:
            raise Unavailable(f"{compiler} cannot compile {_SOURCE}") from error
        with made.open("rb") as file:
            os.fsync(file.fileno())  # what is found by its name is whole, even after a crash
        made.replace(path)


def _processor() -> str:
    """What this processor can do; nothing where that is not known, as it is on Linux."""
    info = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not info.exists():
        return ""
    return next((line.split(":")[1] for line in info.read_text().splitlines() if line[:5] == "flags"), "")
