"""Shared memory: claimed for certain, closed under held views, never left behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sherd.errors import RunError
from sherd.runtime.shared import Arena

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /dev/shm and /proc")


@linux
def test_too_little_shared_memory_is_an_error_not_a_death():
    room = os.statvfs("/dev/shm")
    with pytest.raises(RunError, match="--shm-size"):
        Arena.create(room.f_blocks * room.f_frsize + 2**30)
    assert not list(Path("/dev/shm").glob(f"sherd-{os.getpid()}-*"))


@linux
def test_an_arena_closes_while_views_are_held_and_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        arena = Arena.create(100)
        view = arena.array(0, (4,), "float32")
        arena.close()
        arena.unlink()
        arena.unlink()
        view[:] = 1.0
        del arena, view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert not list(Path("/dev/shm").glob(f"sherd-{os.getpid()}-*"))


SCRIPT = """
import os, signal, sys, time
sys.path[:0] = {path!r}
from stream_children import SPAWN, start, wait_for_ever
from sherd.runtime.shared import Field
from sherd.runtime.streams import StreamSpec, build_streams

if __name__ == "__main__":
    specs = [StreamSpec(str(i), (Field((4,), "float32", 0),), ((0, 4),)) for i in range(3)]
    arena, streams = build_streams(specs)
    events = [SPAWN.Event() for _ in specs]
    children = [start(wait_for_ever, streams[str(i)], events[i]) for i in range(3)]
    for event in events:
        event.wait(20)
    bells = [bell for stream in streams.values() for bell in stream.full + stream.free]
    names = [arena.name] + ["sem." + bell._semaphore._semlock.name.strip("/") for bell in bells]
    print(" ".join(names + [str(child.pid) for child in children]), flush=True)
    if {die}:
        time.sleep(60)
    os.kill(children[0].pid, signal.SIGKILL)
    for child in children:
        child.kill()
        child.join()
"""


def run_script(tmp_path, die):
    """The script's process, what it shares by name, and its children."""
    file = tmp_path / "parent.py"
    file.write_text(SCRIPT.format(path=[str(Path(__file__).parent.parent / "support")], die=die))
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, str(file)], stdout=pipe, stderr=pipe, text=True)
    *names, a, b, c = parent.stdout.readline().split()
    return parent, [Path("/dev/shm") / name for name in names], [int(a), int(b), int(c)]


@linux
def test_nothing_is_left_and_nothing_is_said_after_an_ordinary_end(tmp_path):
    parent, shared_files, _ = run_script(tmp_path, die=False)
    _, complaints = parent.communicate(timeout=30)
    assert complaints == ""
    assert parent.returncode == 0
    assert not [file for file in shared_files if file.exists()]


@linux
def test_nothing_is_left_after_the_parent_was_killed(tmp_path):
    parent, shared_files, children = run_script(tmp_path, die=True)
    assert len(shared_files) == 7
    assert all(file.exists() for file in shared_files)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(file.exists() for file in shared_files):
        time.sleep(0.05)
    assert not [file for file in shared_files if file.exists()]
    assert not [pid for pid in children if Path(f"/proc/{pid}/cmdline").exists() and alive(pid)]
    parent.stdout.close()
    parent.stderr.close()


def alive(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
