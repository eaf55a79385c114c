"""A run's directory: its configuration, its metrics, its parameters.

    config.json      what was asked for; its presence is what makes a directory a run
    metrics.jsonl    one JSON object per training iteration
    <name>.npz       a tree of arrays, one member per leaf, named by the leaf's path

Nothing is pickled, so that opening somebody else's run can never execute their code. Files are written
beside their final name and moved onto it: a reader, or a run that was killed, never sees half a file.
"""

from __future__ import annotations

import io
import json
import os
import platform
import uuid
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import numpy as np

from sherd.errors import RunError, UsageError, nearest
from sherd.runtime.events import Row, RunInfo, to_json
from sherd.runtime.status import FragmentStatus

Tree = Any

CONFIG = "config"
METRICS_FILE = "metrics.jsonl"
# Beside the leaves: the types that NumPy's format has no name for (bfloat16 and its kin), by leaf.
_DTYPES = "dtypes.json"
# What zipfile, zlib and NumPy raise on broken content; a flipped flag reads as RuntimeError('encrypted').
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, KeyError, RuntimeError)


class RunDirectory:
    """The files of one run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = RunDirectory.create(Path(folder) / "runs" / "first")
    ...     run.write_config({"seed": 1})
    ...     RunDirectory.open(run.path).read_config()
    {'seed': 1}
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | Path) -> RunDirectory:
        """A directory for a new run; one that already holds a run is refused."""
        path = Path(path)
        if (path / f"{CONFIG}.json").exists():
            raise UsageError(
                f"{path} already holds a run.\n  fix: choose another --run-dir, or delete this directory"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot create the run directory {path}: {error.strerror}\n"
                "  fix: choose a --run-dir where you may create directories"
            ) from error
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The directory of an existing run."""
        path = Path(path)
        if not (path / f"{CONFIG}.json").is_file():
            raise UsageError(
                f"{path} is not a run: it has no {CONFIG}.json.\n  fix: name a directory that a run wrote"
            )
        return cls(path)

    def write_config(self, config: dict[str, Any]) -> None:
        """Write what the run was asked to do; from here on the directory holds a run."""
        self.write_json(CONFIG, config)

    def read_config(self) -> dict[str, Any]:
        """What the run was asked to do."""
        config: dict[str, Any] = self.read_json(CONFIG)
        return config

    def write_json(self, name: str, value: Any) -> None:
        """Write `<name>.json`, replacing it as a whole."""
        text = to_json(value, indent=2) + "\n"
        _replace(self.path / f"{name}.json", lambda file: file.write(text.encode()))

    def read_json(self, name: str) -> Any:
        """The content of `<name>.json`."""
        file = self._existing(name, ".json")
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise _damaged(file, error) from error

    def save_tree(self, name: str, tree: Tree) -> None:
        """Write the arrays of a pytree to `<name>.npz`, replacing it as a whole."""
        leaves = {path: _array(path, leaf) for path, leaf in _named_leaves(tree)}
        _replace(self.path / f"{name}.npz", lambda file: _write_arrays(file, leaves))

    def load_tree(self, name: str, like: Tree) -> Tree:
        """The tree saved as `<name>.npz`: NumPy arrays in the structure of `like`.

        The leaves of `like` are arrays, or anything else that has a shape and a dtype; each saved leaf must
        agree with its counterpart in both.
        """
        import jax

        file = self._existing(name, ".npz")
        try:
            saved = _read_arrays(file)
        except _DAMAGE as error:
            raise _damaged(file, error) from error
        wanted = dict(_named_leaves(like))
        _check_names(file, set(saved), set(wanted))
        for path, leaf in wanted.items():
            _check_leaf(file, path, saved[path], leaf)
        return jax.tree_util.tree_unflatten(
            jax.tree_util.tree_structure(like), [saved[path] for path in wanted]
        )

    def _existing(self, name: str, suffix: str) -> Path:
        file = self.path / f"{name}{suffix}"
        if not file.is_file():
            present = [other.name.removesuffix(suffix) for other in self.path.glob(f"*{suffix}")]
            hint = (
                nearest(name, present)
                if present
                else "the run has saved nothing: train again, or wait if it still goes on"
            )
            raise UsageError(f"{self.path} has no {name}{suffix}.\n  fix: {hint}")
        return file


class MetricsSink:
    """Appends each row to `metrics.jsonl` of a run directory.

    Lines are written through at once: it costs microseconds, and a slow iteration hides nothing.
    """

    def __init__(self, directory: str | Path) -> None:
        self._file = open(Path(directory) / METRICS_FILE, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def start(self, info: RunInfo) -> None:
        """Nothing to write: the configuration has its own file."""

    def iteration(self, row: Row) -> None:
        """Write one line."""
        self._file.write(to_json(row) + "\n")

    def note(self, text: str) -> None:
        """Notes are for people; the file holds numbers only."""

    def fragments(self, statuses: Sequence[FragmentStatus]) -> None:
        """Not written: the file has one line per iteration, and pictures come by the clock."""

    def finish(self, summary: dict[str, Any]) -> None:
        """Nothing to write."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def environment_versions() -> dict[str, str | int]:
    """What a run's numbers may depend on beside its configuration: versions and hardware.

    >>> sorted(environment_versions())[:4]
    ['cpu_count', 'device_count', 'device_kind', 'flax']
    """
    import jax

    versions: dict[str, str | int] = {"python": platform.python_version()}
    for package in ("sherd", "jax", "jaxlib", "flax", "optax", "gymnasium", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = jax.devices()
    return versions | {
        "platform": platform.platform(),
        "cpu_count": os.cpu_count() or 1,
        "device_kind": devices[0].device_kind,
        "device_count": len(devices),
    }


def _named_leaves(tree: Tree) -> list[tuple[str, Any]]:
    """Leaves with their paths; a key's own slashes are escaped, so that two leaves never share a name."""
    import jax

    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    named = []
    for path, leaf in leaves:
        keys = [jax.tree_util.keystr((key,), simple=True) for key in path]
        name = "/".join(quote(key, safe=" ", errors="surrogatepass") for key in keys)
        named.append((name if path else "array", leaf))  # a tree that is one leaf has no path
    return named


def _array(path: str, leaf: Any) -> np.ndarray:
    """The leaf as an array of plain numbers."""
    try:
        array = np.asarray(leaf)
    except TypeError:  # a typed JAX key
        array = np.empty((), object)
    if array.dtype.hasobject:
        raise UsageError(
            f"the leaf '{path}' is {type(leaf).__name__}, which is not an array of numbers.\n"
            "  fix: leave it out of the tree; of a random key, keep jax.random.key_data(key)"
        )
    return array


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside `path`, then move it there in one step."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_arrays(file: IO[bytes], leaves: dict[str, np.ndarray]) -> None:
    """An .npz by hand: `np.savez` cannot write a leaf named 'file', nor types registered with NumPy."""
    dtypes = {path: array.dtype.name for path, array in leaves.items() if _registered(array.dtype)}
    with zipfile.ZipFile(file, "w") as archive:
        for path, array in leaves.items():
            # A view needs contiguous memory; ascontiguousarray alone would make a scalar a vector.
            raw = np.ascontiguousarray(array).reshape(array.shape)
            if path in dtypes:
                raw = raw.view(f"u{array.dtype.itemsize}")
            with archive.open(f"{path}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, raw, allow_pickle=False)
        if dtypes:
            archive.writestr(_DTYPES, to_json(dtypes))


def _registered(dtype: np.dtype[Any]) -> bool:
    """Whether the type is a library's own (ml_dtypes'), which NumPy's format would write as raw bytes."""
    return dtype.isbuiltin == 2


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(file) as archive:
        members = archive.namelist()
        dtypes = json.loads(archive.read(_DTYPES)) if _DTYPES in members else {}
        leaves = {}
        for member in members:
            if member != _DTYPES:
                # Reading the whole member is what makes zipfile verify its checksum.
                content = io.BytesIO(archive.read(member))
                path = member.removesuffix(".npy")
                raw = np.lib.format.read_array(content, allow_pickle=False)
                leaves[path] = raw.view(np.dtype(dtypes[path])) if path in dtypes else raw
    return leaves


def _check_names(file: Path, saved: set[str], wanted: set[str]) -> None:
    if saved == wanted:
        return
    parts = [f"it lacks '{path}'" for path in sorted(wanted - saved)[:3]]
    parts += [f"it has '{path}', which is not wanted" for path in sorted(saved - wanted)[:3]]
    raise UsageError(
        f"{file} holds another tree: {'; '.join(parts)}.\n"
        "  fix: load it with the algorithm, network and environment that saved it"
    )


def _check_leaf(file: Path, path: str, saved: np.ndarray, like: Any) -> None:
    like = like if hasattr(like, "dtype") else np.asarray(like)
    if saved.shape == tuple(like.shape) and saved.dtype == like.dtype:
        return
    raise UsageError(
        f"{file}: the leaf '{path}' is {saved.dtype}{list(saved.shape)}, "
        f"but {like.dtype}{list(like.shape)} is wanted.\n"
        "  fix: load it with the algorithm, network and environment that saved it"
    )


def _damaged(file: Path, error: Exception) -> RunError:
    return RunError(
        f"{file} is damaged ({type(error).__name__}: {error}).\n  fix: restore it from a copy, or run again"
    )
