"""What a worker is given, packed so that it can be opened late and without the user's script.

Two problems are solved here. A spawned process normally imports the user's `__main__` again before anything
else, and with it JAX, for seconds and hundreds of megabytes that a simulator has no use for: so the content
is pickled with an empty module in its place, and only if that fails with the real one. And whatever is
unpickled imports NumPy, which looks at OMP_NUM_THREADS once: so the content travels as bytes, to be opened
after the worker has set its environment. The bytes lie in a nameless file: a pipe holds 64 KB, and starting
a worker would otherwise wait until it had come up far enough to read the rest.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import context, spawn
from multiprocessing.reduction import DupFd, ForkingPickler
from types import ModuleType
from typing import Any

from sherd.errors import UsageError

_importing_main = False


class Unpackable(Exception):
    """The content cannot be pickled the way that was tried."""


@contextmanager
def main_module(module: ModuleType) -> Iterator[None]:
    """Let `module` be `__main__` for a moment."""
    real = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        yield
    finally:
        sys.modules["__main__"] = real


def blank_main() -> ModuleType:
    """A `__main__` that a spawned process has no reason to import."""
    return ModuleType("__main__")


def refuse_in_main_import() -> None:
    """Starting workers while a worker imports the user's script would never end."""
    if _importing_main:
        raise UsageError(
            "the script starts a run while it is being imported by one of the run's own workers.\n"
            '  fix: put what starts the run under `if __name__ == "__main__":`'
        )


def packable(table: dict[Any, Any]) -> dict[Any, Any]:
    """The entries that any process can unpack, whatever script the user has started.

    >>> packable({"a": 1, "b": lambda: 2})
    {'a': 1}
    """
    return {key: value for key, value in table.items() if _packs((key, value))}


def _packs(content: Any) -> bool:
    with main_module(blank_main()):
        try:
            ForkingPickler.dumps(content)
        except Exception:  # pickling calls the content's own code: anything may come out
            return False
    return True


class Parcel:
    """Content on its way into a new process; pickled exactly once, while that process is being started."""

    def __init__(self, content: Any, main: ModuleType | None = None) -> None:
        self._content = content
        self._main = main
        self._file: Any = None
        self.popen: Any = None  # the process being started: known even if starting it fails half way

    def __reduce__(self) -> tuple[Any, ...]:
        self.popen = context.get_spawning_popen()
        with main_module(self._main or blank_main()):
            where = _main_location() if self._main else {}
            try:
                data = ForkingPickler.dumps(self._content)
            except Exception as error:  # pickling calls the content's own code: anything may come out
                raise Unpackable(f"{type(error).__name__}: {error}") from error
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process was started)
        self._file.write(data)
        self._file.flush()
        return Packed, (DupFd(self._file.fileno()), len(data), where)

    def close(self) -> None:
        """Give the file back: the new process has it, or never will."""
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True)
class Packed:
    """The content as it arrives in the worker."""

    file: Any  # a file descriptor, wrapped for its journey
    size: int
    main: dict[str, str]

    def open(self) -> Any:
        """The content; imports the user's script first if something in it was defined there."""
        global _importing_main
        _importing_main = True
        try:
            spawn.prepare(self.main)
        finally:
            _importing_main = False
        with open(self.file.detach(), "rb") as file:
            return ForkingPickler.loads(os.pread(file.fileno(), self.size, 0))


def _main_location() -> dict[str, str]:
    """How a worker can import `__main__`, in the words of `multiprocessing.spawn.prepare`."""
    data = spawn.get_preparation_data("")
    names = ("init_main_from_name", "init_main_from_path")
    where = {name: str(value) for name, value in data.items() if name in names}
    path = where.get("init_main_from_path")
    if not where or (path is not None and not os.path.exists(path)):
        raise Unpackable("it is defined in an interactive session, which another process cannot import")
    return where
