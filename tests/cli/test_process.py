"""The command as users run it: a process of its own, its exit code, its stdout, its signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

COMMAND = [sys.executable, "-c", "from sherd.cli.main import entry; entry()"]


def start(line: str, home: Path, **options: Any) -> subprocess.Popen[str]:
    """Start the command with its streams piped."""
    return subprocess.Popen(
        [*COMMAND, *line.split()],
        cwd=home,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.parametrize("line", ["--help", "--version", "list policies", "list algorithms"])
def test_quick_answers_never_import_jax(line: str, tmp_path: Path) -> None:
    run = "import sys; from sherd.cli.main import main; main(sys.argv[1:])"
    code = run + "; print({'jax', 'gymnasium'} & {*sys.modules})"
    result = subprocess.run(
        [sys.executable, "-c", code, *line.split()], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.stdout.splitlines()[-1] == "set()"
    assert result.stderr == ""


def test_a_pipe_closed_by_its_reader_is_no_error(tmp_path: Path) -> None:
    process = start("list envs", tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait(60)


def test_train_end_to_end(home: Path) -> None:
    line = "train ppo CartPole-v1 --steps 4000 --seed 3 --envs 4 --algo.horizon 64 --eval-episodes 4"
    code, out, err = finish(start(f"{line} --run-dir runs/x --json", home))
    assert code == 0, err
    assert len(out.splitlines()) == 1
    summary = json.loads(out, parse_constant=lambda name: pytest.fail(f"not JSON: {name}"))
    assert summary["steps"] == 4096
    assert summary["steps_per_second"] == pytest.approx(4096 / summary["seconds"], rel=0.01)
    assert summary["episodes"] > 10
    assert summary["return_mean"] > 0
    assert summary["return_std"] >= 0
    assert "100%" in err
    assert "arning" not in err
    run = home / "runs" / "x"
    _check_metrics(run)
    assert list(run.glob("*tfevents*"))
    with np.load(run / "params.npz", allow_pickle=False) as saved:
        first = {name: saved[name] for name in saved.files}
    _check_repeatable(run, first)
    code, out, err = finish(start("eval runs/x --episodes 10 --json", home))
    assert code == 0, err
    assert err == ""
    played = json.loads(out)
    assert played["episodes"] == 10
    assert played["return_min"] <= played["return_mean"] <= played["return_max"]


def _check_metrics(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    wanted = {"iteration", "steps", "seconds", "steps_per_second", "episode_return", "episode_length", "loss"}
    assert all(wanted <= set(row) for row in rows)
    assert [row["steps"] for row in rows] == [256 * number for number in range(1, 17)]
    assert all(row["loss"] is not None for row in rows)


def _check_repeatable(run: Path, params: dict[str, np.ndarray]) -> None:
    """Train again from what config.json says, and from nothing else."""
    import sherd
    from sherd.algorithms import load_algorithm
    from sherd.policies import load_policy

    config = json.loads((run / "config.json").read_text())
    assert config["versions"]["jax"]
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in config["algorithm"].items()}
    algorithm = load_algorithm(fields.pop("name"))(**fields)
    policy = load_policy(config["policy"].pop("name"))(**config["policy"])
    again = run.parent / "again"
    sherd.train(algorithm, config["env"], policy, **{**config["run"], "run_dir": again, "eval_episodes": 0})
    with np.load(again / "params.npz", allow_pickle=False) as saved:
        for name, value in params.items():
            np.testing.assert_array_equal(saved[name], value)


def test_fused_makes_the_devices_it_is_asked_for(home: Path) -> None:
    line = "train ppo graph/CartPole-v1 --policy Fused --policy.devices 2 --steps 20000 --envs 16"
    code, out, err = finish(start(f"{line} --eval-episodes 0 --json --quiet --run-dir r", home))
    assert code == 0, err
    assert err == ""
    assert json.loads(out)["steps"] >= 20_000
    assert json.loads((home / "r" / "config.json").read_text())["versions"]["device_count"] == 2


def test_first_interrupt_ends_cleanly_and_keeps_what_was_learnt(home: Path) -> None:
    process = start("train mine:Tiny mine:Plain --steps 100000000 --run-dir r --json", home)
    _wait_for_rows(process, home / "r" / "metrics.jsonl")
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, err
    assert "Traceback" not in err
    summary = json.loads(out)
    assert summary["interrupted"] is True
    assert 0 < summary["steps"] < 100_000_000
    with np.load(home / "r" / "params.npz", allow_pickle=False) as saved:
        assert all(np.isfinite(saved[name]).all() for name in saved.files)
    code, out, err = finish(start("eval r --episodes 3 --json", home))
    assert code == 0, err
    assert json.loads(out)["return_mean"] == 5.0


def test_second_interrupt_ends_at_once(home: Path) -> None:
    (home / "stuck.py").write_text(STUCK)
    process = start("train mine:Tiny stuck:Stuck --steps 100000000 --quiet", home)
    deadline = time.monotonic() + 60
    while not (home / "stuck").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 130, err
    assert time.monotonic() - began < 15
    assert "Traceback" not in err
    assert out == ""


# Nearly a minute within one call of C, as a long compilation is: Python's own handlers must wait for its end.
STUCK = """
import hashlib, pathlib
import mine

class Stuck(mine.Plain):
    def reward(self):
        pathlib.Path("stuck").touch()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000_000)
        return 1.0
"""


def _wait_for_rows(process: subprocess.Popen[str], file: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and file.read_text().count("\n") > 3:
            return
        time.sleep(0.05)
    pytest.fail(f"no rows: {process.poll()} {os.listdir(file.parent) if file.parent.exists() else ''}")
