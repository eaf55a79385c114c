"""The scripts of the other libraries say what they are and what they need, and leave nothing behind."""

import contextlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted((BENCHMARKS / "peers").glob("run_*.py"))
LEAVES_MEMORY = """
from multiprocessing import shared_memory, resource_tracker
import time
block = shared_memory.SharedMemory(create=True, size=64)
resource_tracker.unregister(block._name, "shared_memory")
print(block.name, flush=True)
time.sleep(60)
"""


def run_bare(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """With the standard library alone."""
    command = [sys.executable, "-S", "-E", str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help_needs_no_library(script: Path) -> None:
    done = run_bare(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {script.name}" in done.stdout
    assert f"{script.name} " in done.stdout.split("KEY=VALUE", 1)[1]  # its docstring says how to call it


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_missing_library_is_one_line_with_a_fix(script: Path) -> None:
    done = run_bare(script, "cartpole-8")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{script.name}: No module named ")
    name = script.stem.removeprefix("run_").replace("_", "-")
    assert (f"environments.py {name}`" if name not in ("sherd", "limits") else "pip install -e .") in line


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="shared memory has no files here")
def test_what_a_stopped_library_left_in_shared_memory_is_removed() -> None:
    found = importlib.util.spec_from_file_location("processes", BENCHMARKS / "processes.py")
    assert found is not None
    assert found.loader is not None
    processes = importlib.util.module_from_spec(found)
    sys.modules[found.name] = processes
    found.loader.exec_module(processes)
    before = processes.shared_files()
    child = subprocess.Popen([sys.executable, "-c", LEAVES_MEMORY], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    name = child.stdout.readline().strip()
    left = Path("/dev/shm") / name
    processes.remove_unused(processes.shared_files() - before)
    assert left.exists()  # it is in use
    family = processes.Family(child.pid)
    family.end()
    processes.remove_unused(processes.shared_files() - before)  # nobody waits for those that were adopted
    assert not left.exists()
    child.wait()


def command_lines() -> list[bytes]:
    """Of all processes."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has gone
            found.append(file.read_bytes())
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes cannot be listed here")
def test_contenders_take_turns_and_all_of_them_end(tmp_path: Path) -> None:
    alone = [f"limits part=simulator processes={count}" for count in (1, 2)]
    brief, rows = ["--rounds", "2", "--seconds", "0.3"], tmp_path / "rows.jsonl"
    script = [sys.executable, str(BENCHMARKS / "turns.py"), "slow"]
    done = subprocess.run(
        [*script, *alone, *brief, "--results", str(rows)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(row["peer"], row["setting"]) for row in found] == [tuple(name.split(" ", 1)) for name in alone]
    assert all(len(row["steps_per_second"]) == 2 and min(row["steps_per_second"]) > 0 for row in found)
    table = done.stdout.splitlines()
    assert table[3].startswith("| limits part=simulator processes=2 | 2 | ")
    assert "x (" in table[3]
    assert not [words for words in command_lines() if b"part=simulator" in words and b"turns.py" not in words]


def test_an_unknown_contender_is_refused() -> None:
    script = [sys.executable, str(BENCHMARKS / "turns.py"), "graph-cartpole", "sherd", "sbx"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "'sbx' is no contender of graph-cartpole; there are sherd, rejax" in done.stderr


def test_compare_keeps_a_row_for_every_setting_and_ends_all(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    words = ["cartpole-8", "--peers", "sherd", "--quick", "--no-limits", "--seconds", "0.5"]
    script = [sys.executable, str(BENCHMARKS / "compare.py"), *words, "--results", str(rows)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    [sherd] = [row for row in found if row["peer"] == "sherd"]
    assert len(sherd["steps_per_second"]) == 3
    assert min(sherd["steps_per_second"]) > 0
    assert sherd["first_update_seconds"] > 0
    assert sherd["peak_mb"] > 100
    assert sherd["versions"]["sherd"]
    assert "| cartpole-8: PPO, CartPole-v1, 8 x 128 | Sherd " in done.stdout
    assert not [line for line in command_lines() if b"run_sherd.py" in line and b"cartpole-8" in line]


def test_what_the_scripts_say_of_themselves_is_true() -> None:
    files = ["contenders.py", "compare.py", "speed_table.py"]
    script = [sys.executable, "-m", "doctest", *files]
    done = subprocess.run(script, cwd=BENCHMARKS, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
