"""Ctrl-C, once and twice, a killed parent, exit codes: the command as users run it, in a group of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leaks import no_leaks, processes, settles
from thorough import mostly_thorough

pytestmark = pytest.mark.usefixtures("no_leaks")
__all__ = ["no_leaks"]

LIMIT = 10.0 if os.getloadavg()[0] < 2 * (os.cpu_count() or 1) else 40.0  # others may use the machine too
SUPPORT = Path(__file__).parents[1] / "support"


class Command:
    """`sherd train` as a process, and everything that it started."""

    def __init__(self, home: Path, policy: str, faults: str = "", steps: int = 10**9) -> None:
        self.home, self.run = home, home / "run"
        variables = {"FAULTS": faults, "FAULTY_HOME": str(home), "PYTHONPATH": str(SUPPORT)}
        line = (
            f"train faulty_code:Watched faulty_code:Numbered --policy {policy} --envs 4 --run-dir run --quiet"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sherd", *line.split(), "--steps", str(steps), "--json"],
            cwd=home,
            env=os.environ | variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.memory: set[str] = set()

    def await_file(self, name: str, lines: int = 0) -> None:
        """Wait until a file is there, with so many lines."""
        file = self.home / name

        def there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return file.exists() and file.read_text().count("\n") >= lines

        assert settles(there, 60)
        self.memory |= self._mapped()

    def _mapped(self) -> set[str]:
        """The files in /dev/shm that the parent looks into: arenas, boards and bells."""
        lines = Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        return {line.split()[5] for line in lines if "/dev/shm/" in line}

    def workers(self) -> dict[str, int]:
        """The process ids of all workers."""
        found = json.loads((self.run / "processes.json").read_text())
        return {name: one["pid"] for name, one in found.items()}

    def terminate(self) -> None:
        """As a scheduler or a container does it: only the parent is told."""
        self.process.send_signal(signal.SIGTERM)

    def press_ctrl_c(self) -> None:
        """As a terminal does it: the whole group is told, not only the parent."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self, workers: dict[str, int]) -> tuple[int, str, str]:
        """Wait for the end; in time, nothing of it is left."""
        began = time.monotonic()
        out, err = self.process.communicate(timeout=60)
        assert self.memory
        assert settles(lambda: not self._left(workers), LIMIT - (time.monotonic() - began)), self._left(
            workers
        )
        return self.process.returncode, out, err

    def _left(self, workers: dict[str, int]) -> list[Any]:
        alive = processes()
        return [pid for pid in workers.values() if pid in alive] + list(filter(os.path.exists, self.memory))

    def require_parameters(self) -> None:
        """What was learnt is there."""
        with np.load(self.run / "params.npz", allow_pickle=False) as saved:
            assert all(np.isfinite(saved[leaf]).all() for leaf in saved.files)


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    """Whatever a test started is ended, also if the test fails."""
    started: list[Command] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            os.killpg(command.process.pid, signal.SIGKILL)
            command.process.communicate()


def test_sigterm_is_taken_for_ctrl_c(tmp_path: Path, commands: list[Command]) -> None:
    command = Command(tmp_path, "SingleLearnerCoarse")
    commands.append(command)
    command.await_file("run/metrics.jsonl", lines=2)
    workers = command.workers()
    command.terminate()
    code, out, err = command.finish(workers)
    assert (code, err) == (130, "")
    assert json.loads(out)["interrupted"] is True
    command.require_parameters()


def test_first_ctrl_c_ends_in_order_and_what_was_learnt_can_be_played(
    tmp_path: Path, commands: list[Command]
) -> None:
    command = Command(tmp_path, "SingleLearnerFine")
    commands.append(command)
    command.await_file("run/metrics.jsonl", lines=3)
    os.kill(command.workers()["actors[1]"], signal.SIGKILL)  # a restart before it is no obstacle
    assert settles(lambda: '"restarts": 1.0' in (command.run / "metrics.jsonl").read_text(), LIMIT)
    workers = command.workers()
    command.press_ctrl_c()
    code, out, err = command.finish(workers)
    assert (code, err) == (130, "")
    summary = json.loads(out)
    assert summary["interrupted"] is True
    rows = [json.loads(line) for line in (command.run / "metrics.jsonl").read_text().splitlines()]
    assert summary["steps"] == 32 * len(rows)
    ledger = json.loads((command.run / "ledger.json").read_text())
    assert ledger["balance"] == 0
    assert summary["steps"] <= ledger["consumed"] <= summary["steps"] + 32
    played = subprocess.run(
        [sys.executable, "-m", "sherd", "eval", "run", "--episodes", "2", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SUPPORT)},
        text=True,
        capture_output=True,
    )
    assert json.loads(played.stdout)["return_mean"] == 5.0, played.stderr


def test_second_ctrl_c_does_not_wait_for_anybody(tmp_path: Path, commands: list[Command]) -> None:
    command = Command(tmp_path, "SingleLearnerCoarse", "actors[0] step 60 sleep")
    commands.append(command)
    command.await_file("fault-0")
    workers = command.workers()
    command.press_ctrl_c()
    time.sleep(1.0)
    assert command.process.poll() is None  # an orderly end is being waited for
    command.press_ctrl_c()
    code, out, err = command.finish(workers)
    assert (code, out, err) == (130, "", "sherd: interrupted\n")
    command.require_parameters()


def test_ctrl_c_while_workers_start(tmp_path: Path, commands: list[Command]) -> None:
    command = Command(tmp_path, "MultiLearner")
    commands.append(command)
    command.await_file("run/processes.json")
    workers = command.workers()
    command.press_ctrl_c()
    code, _, err = command.finish(workers)
    assert (code, err) == (130, "")


@pytest.mark.parametrize("lanes", mostly_thorough(["", " --policy.asynchronous"], [""]))
def test_ctrl_c_during_the_first_iteration_leaves_a_balanced_ledger(
    tmp_path: Path, commands: list[Command], lanes: str
) -> None:
    """As while it compiles: the learner has taken its samples, and will not come back in time."""
    command = Command(tmp_path, f"SingleLearnerCoarse{lanes} --algo.hooked learn", "learner[0] stage 1 sleep")
    commands.append(command)
    command.await_file("fault-0")
    workers = command.workers()
    command.press_ctrl_c()
    code, out, err = command.finish(workers)
    assert (code, err) == (130, "")
    assert json.loads(out)["steps"] == 0
    ledger = json.loads((command.run / "ledger.json").read_text())
    assert (ledger["balance"], ledger["consumed"]) == (0, 0)
    assert ledger["produced"] >= 32
    if lanes:
        assert ledger["dropped"] == {"interrupted": 32}


def test_nothing_outlives_a_killed_parent(tmp_path: Path, commands: list[Command]) -> None:
    command = Command(tmp_path, "SingleLearnerCoarse")
    commands.append(command)
    command.await_file("run/metrics.jsonl", lines=1)
    workers = command.workers()
    os.kill(workers["actors[0]"], signal.SIGSTOP)  # it can do nothing about it itself
    command.process.kill()
    code, out, _ = command.finish(workers)
    assert (code, out) == (-signal.SIGKILL, "")


def test_an_environment_that_always_fails_spends_the_budget(tmp_path: Path, commands: list[Command]) -> None:
    command = Command(tmp_path, "SingleLearnerFine", "actors[1] step 50! raise")
    commands.append(command)
    command.await_file("run/metrics.jsonl", lines=1)
    code, out, err = command.finish({})
    assert (code, out) == (1, "")
    first, *rest = err.splitlines()
    assert first.startswith("sherd: actors[1], a process of kind environment, failed: died 4 times; ")
    assert "ValueError: a fault of the user's in actors[1]" in first
    assert any(line.startswith("  in the loop at ") and "faulty_code.py:" in line for line in rest)
    assert "  | Traceback (most recent call last):" in rest
    assert all(line.startswith("  ") for line in rest)
    command.require_parameters()
    rows = [json.loads(line) for line in (command.run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["restarts"] == 3
