"""A process and its family: how much memory they take, and that none outlives it.

Memory is the proportional set size where Linux tells it: what several processes share is counted once.
Libraries that start daemons may leave them behind, also after a good end; whatever descends from the
first process is ended. Those that share memory may leave files in /dev/shm: what came meanwhile and is used
by no process is removed.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PROC, SHARED = Path("/proc"), Path("/dev/shm")
TO_DIE = 5.0  # seconds that killed processes are given


class Family:
    """A process and all that descend from it, also those whose parents have gone."""

    def __init__(self, first: int) -> None:
        self.members = {first: _birth(first)}
        self.peak_mb = 0.0

    def sample(self) -> float:
        """Look for new members; the megabytes that all of them use together."""
        parents = {pid: stat[0] for pid in _all_processes() if (stat := _stat(pid))}
        grown = True
        while grown:
            new = [
                pid for pid, parent in parents.items() if parent in self.members and pid not in self.members
            ]
            self.members |= {pid: _birth(pid) for pid in new}
            grown = bool(new)
        used = sum(_memory_mb(pid) for pid in self._alive())
        self.peak_mb = max(self.peak_mb, used)
        return used

    def signal(self, number: int) -> None:
        """Send a signal to whoever is left."""
        for pid in self._alive():
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue

    def end(self) -> None:
        """End whoever is left; what they have mapped or open is free when this returns."""
        self.signal(signal.SIGKILL)
        until = time.monotonic() + TO_DIE
        while any(_holds_something(pid) for pid in self._alive()) and time.monotonic() < until:
            time.sleep(0.01)

    def _alive(self) -> list[int]:
        # A number may have been given to another process since; its time of birth tells.
        return [pid for pid, birth in self.members.items() if birth is not None and _birth(pid) == birth]


def shared_files() -> set[Path]:
    """What is in shared memory now."""
    return {entry for entry in SHARED.iterdir() if entry.is_file()} if SHARED.exists() else set()


def remove_unused(files: set[Path]) -> None:
    """Remove files that no living process has mapped or open."""
    if not files:
        return
    used = set()
    for pid in _all_processes():
        try:
            used |= {Path(line.split(maxsplit=5)[-1]) for line in _maps(pid) if str(SHARED) in line}
            used |= {entry.readlink() for entry in (PROC / str(pid) / "fd").iterdir()}
        except OSError:  # it has gone, or is somebody else's
            continue
    for file in files - used:
        try:
            file.unlink(missing_ok=True)
        except PermissionError:
            continue


def _maps(pid: int) -> list[str]:
    return (PROC / str(pid) / "maps").read_text().splitlines()


def _holds_something(pid: int) -> bool:
    """Whether a process has memory or files still, which it loses one after the other.

    One that only waits to be buried has none.
    """
    try:
        return bool(_maps(pid)) or any((PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()] if PROC.exists() else []


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and time of birth."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return int(fields[1]), int(fields[19])


def _birth(pid: int) -> int | None:
    found = _stat(pid)
    return found[1] if found else None


def _memory_mb(pid: int) -> float:
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    try:
        pages = int((PROC / str(pid) / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0
