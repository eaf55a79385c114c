"""After a test with processes: nobody is left, and nothing in shared memory.

Usage: `from leaks import no_leaks` and `pytestmark = pytest.mark.usefixtures("no_leaks")`. Only descendants
of this pytest process and names that carry its id are looked at: other runs on the machine are not ours.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

_GRACE_SECONDS = 2.0  # a killed process needs a moment to vanish


def processes() -> dict[int, tuple[int, str]]:
    """Every process of the machine: its parent and its name with its state."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(") ")
        except OSError:
            continue
        state, parent = tail.split()[:2]
        found[int(entry.name)] = (int(parent), f"{head.partition('(')[2]} [{state}]")
    return found


def descendants(ancestor: int | None = None) -> dict[int, str]:
    """The processes below `ancestor` (this process), zombies too; not Python's resource tracker."""
    if not Path("/proc/self/stat").exists():
        return {child.pid: child.name for child in multiprocessing.active_children() if child.pid is not None}
    table = processes()
    below = {ancestor or os.getpid()}
    found: dict[int, str] = {}
    while fresh := {pid for pid, (parent, _) in table.items() if parent in below and pid not in found}:
        found |= {pid: table[pid][1] for pid in fresh}
        below |= fresh
    found.pop(getattr(resource_tracker._resource_tracker, "_pid", None) or 0, None)
    return found


def shared_memory(pid: int | None = None) -> set[str]:
    """The names in shared memory that a process (this one) made."""
    folder = Path("/dev/shm")
    if not folder.exists():
        return set()
    return {path.name for path in folder.glob("sherd-*") if str(pid or os.getpid()) in path.name.split("-")}


def settles(condition, seconds: float = _GRACE_SECONDS) -> bool:
    """Whether a condition comes true in time; for what no event announces."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail if the test leaves a process or shared memory behind."""
    before, memory = set(descendants()), shared_memory()
    yield
    if set(descendants()) - before or shared_memory() - memory:
        gc.collect()  # takes a second where many programs were compiled
    settles(lambda: not set(descendants()) - before)
    left = {pid: name for pid, name in descendants().items() if pid not in before}
    assert not left, f"processes left behind: {left}"
    assert not shared_memory() - memory, "shared memory left behind"
