"""What the peers' scripts share: arguments, environments, the clock, and the line that they end with.

The scripts are called run_<peer>.py because the folder of a script comes first where Python looks for
modules: a file torchrl.py here would hide TorchRL from itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from workloads import WORKLOADS, Workload

STARTED = time.time()
MARKS = os.environ.get("BENCH_MARKS")  # where contenders.py wants to read what was made
TOGETHER = 0.005
SHARED_PACKAGES = ("gymnasium", "numpy", "torch", "jax", "mujoco", "ale-py")


def parser(about: str | None) -> argparse.ArgumentParser:
    """What every script understands."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("workload", choices=WORKLOADS)
    found.add_argument("setting", nargs="*", metavar="KEY=VALUE", help="see benchmarks/workloads.py")
    found.add_argument("--seconds", type=float, default=10.0, help="how long to measure")
    found.add_argument("--warm-up", type=float, default=1.0, help="seconds after the first update")
    return found


@contextlib.contextmanager
def imports(peer: str, about: str | None) -> Iterator[None]:
    """Around a script's imports: --help comes before them, and if one is not there, how to get it."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        parser(about).parse_args()
    try:
        yield
    except ModuleNotFoundError as error:
        made = f"`python benchmarks/environments.py {peer}`, then run it with .bench/{peer}/bin/python"
        fix = "`pip install -e .`" if peer == "sherd" else made
        raise SystemExit(f"{Path(sys.argv[0]).name}: {error}; fix: {fix}") from None


class Meter:
    """Steps per second, from a mark after every iteration; the warm-up is not counted.

    `mark` says whether enough was measured. Iterations that are reported at the same moment count as one
    mark, else the first of them would begin the count and the others, long made, would be part of it.

    If contenders.py is who measures, marks are noted in a file for it, and nothing is ever enough.
    """

    def __init__(self, seconds: float, warm_up: float) -> None:
        self.seconds, self.warm_up = seconds, warm_up
        self.first: float | None = None
        self.begun: tuple[float, float] | None = None
        self.last = (0.0, 0.0)
        self.first_update_seconds = 0.0
        self.diary = open(Path(MARKS, str(os.getpid())), "a", buffering=1) if MARKS else None  # noqa: SIM115
        self.pending = ""

    def mark(self, steps: float) -> bool:
        """So many steps were made, and learnt from, since the beginning."""
        now = time.perf_counter()
        if self.diary is not None:
            self._note(now, f"{now} {steps}\n")
            return False
        if self.first is None:
            self.first, self.first_update_seconds = now, time.time() - STARTED
            return False
        if self.begun is None:
            if now - self.first >= self.warm_up:
                self.begun = (now, steps)
            return False
        if now - self.begun[0] < TOGETHER:
            self.begun = (self.begun[0], steps)
            return False
        self.last = (now, steps)
        return now - self.begun[0] >= self.seconds

    def _note(self, now: float, line: str) -> None:
        """Of marks at the same moment only the first is written at once, the last when time has gone on."""
        if self.diary is not None and now - self.last[0] >= TOGETHER:
            self.diary.write(self.pending + line)
            self.pending, self.last = "", (now, 0.0)
        else:
            self.pending = line

    @property
    def rate(self) -> float:
        """Steps per second."""
        if self.begun is None or self.last[0] <= self.begun[0]:
            raise SystemExit("the run ended before anything was measured")
        return (self.last[1] - self.begun[1]) / (self.last[0] - self.begun[0])


class Task:
    """What a script was asked to do: `name`, `workload`, `setting` and the meter to mark."""

    def __init__(self, peer: str, package: str, about: str | None) -> None:
        given = parser(about).parse_args()
        self.peer, self.name = peer, given.workload
        self.workload: Workload = WORKLOADS[given.workload]
        self.words = given.setting
        self.setting = dict(word.split("=", 1) for word in given.setting)
        self.meter = Meter(given.seconds, given.warm_up)
        self.versions = versions(package, *SHARED_PACKAGES)
        if MARKS:
            Path(MARKS, "versions.json").write_text(json.dumps(self.versions))

    def get(self, key: str, default: str) -> str:
        """A word of the setting."""
        return self.setting.get(key, default)

    def number(self, key: str, default: int) -> int:
        """A word of the setting, as a number."""
        return int(self.setting.get(key, default))

    def report(self, rate: float | None = None) -> None:
        """The last line: what was measured, by the meter or, given its rate, by others."""
        print(
            json.dumps(
                {
                    "workload": self.name,
                    "peer": self.peer,
                    "setting": " ".join(self.words),
                    "steps_per_second": round(self.meter.rate if rate is None else rate, 1),
                    "first_update_seconds": round(self.meter.first_update_seconds, 2),
                    "versions": self.versions,
                }
            ),
            flush=True,
        )


def versions(*packages: str) -> dict[str, str]:
    """Of Python and of the packages that are there."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def make_env(name: str) -> Any:
    """One environment by the name of a workload; Pong as everybody plays it: 84x84 grey, skip 4, stack 4."""
    import gymnasium as gym

    if ":" in name:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)()
    old = gym.__version__.startswith("0.")
    if not name.startswith("ALE/"):
        if name == "HalfCheetah-v5" and old:
            name = "HalfCheetah-v4"  # the same simulation; Gymnasium 0.29 has no v5
        return gym.make(name)
    import ale_py

    if old:
        env = _old_atari(name)
    else:
        gym.register_envs(ale_py)
        env = gym.make(name, frameskip=1, repeat_action_probability=0.25)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30, frame_skip=4)
    if hasattr(gym.wrappers, "FrameStackObservation"):
        return gym.wrappers.FrameStackObservation(env, 4)
    return as_arrays(gym.wrappers.FrameStack(env, 4))


def _old_atari(name: str) -> Any:
    """Gymnasium 0.29 cannot register what ale_py of today brings, but can step it."""
    from ale_py.env import AtariEnv

    return AtariEnv(name[4:-3].lower(), frameskip=1, repeat_action_probability=0.25)


def as_arrays(env: Any) -> Any:
    """Frame stacks of Gymnasium 0.29 are lazy objects; its peers want arrays."""
    import gymnasium as gym
    import numpy as np

    class Arrays(gym.ObservationWrapper):
        def observation(self, observation: Any) -> Any:
            return np.asarray(observation)

    return Arrays(env)


def makers(workload: Workload) -> list[Any]:
    """As many functions that make one environment as the workload has environments."""
    return [lambda: make_env(workload.env)] * workload.envs
