"""Faults: every kind of process is killed, stopped or raises, with real signals, at the worst moments.

Within ten seconds the run goes on, or ends with one message that says who, why and where in the loop. What
was learnt is kept, every sample is counted once, and nothing is left: no process, no shared memory.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_code import Numbered, Remembering, Watched
from leaks import descendants, no_leaks
from thorough import mostly_thorough

import sherd
from sherd.errors import RunError
from sherd.policies import load_policy

pytestmark = pytest.mark.usefixtures("no_leaks")
__all__ = ["no_leaks"]

# Seconds between a fault and the end, or the going on, of a run; more where others use the machine too.
LIMIT = 10.0 if os.getloadavg()[0] < 2 * (os.cpu_count() or 1) else 40.0
FOREVER = 10**9


@dataclass
class Faulty:
    """A run in which something goes wrong, and its directory."""

    home: Path
    monkeypatch: pytest.MonkeyPatch
    notes: list[str] = field(default_factory=list)
    mapped: set[str] = field(default_factory=set)
    last_row: float = field(default_factory=time.monotonic)

    def train(
        self,
        policy: str,
        faults: str,
        steps: int = FOREVER,
        hooked: str = "",
        env: Any = Numbered,
        kind: type[Watched] = Watched,
        **fields: Any,
    ) -> Any:
        """Train with faults (faulty_code.py says how they are written)."""
        self.monkeypatch.setenv("FAULTS", faults)
        distribution = load_policy(policy)(**fields)
        algorithm = kind(hooked=hooked)
        options: dict[str, Any] = {
            "steps": steps,
            "envs": 4,
            "eval_episodes": 0,
            "run_dir": self.home / "run",
        }
        return sherd.train(algorithm, env, distribution, [self], **options)

    def fails(self, policy: str, faults: str, **options: Any) -> str:
        """Train until it fails, in time: the message."""
        with pytest.raises(RunError) as failure:
            self.train(policy, faults, **options)
        took = time.time() - max(file.stat().st_mtime for file in self.home.glob("fault-*"))
        assert took < LIMIT
        assert not [name for name in self.mapped if os.path.exists(name)], "shared memory left behind"
        assert self.ledger()["balance"] == 0
        assert all(one["pid"] is None for one in self.json("processes").values())
        return str(failure.value)

    def json(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.home / "run" / f"{name}.json").read_text())
        return found

    def ledger(self) -> dict[str, Any]:
        return self.json("ledger")

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / "run" / "metrics.jsonl").read_text().splitlines()]

    def require_parameters(self) -> None:
        """The last parameters were saved whole."""
        for name in ("params", "state"):
            with np.load(self.home / "run" / f"{name}.npz", allow_pickle=False) as saved:
                assert saved.files
                assert all(np.isfinite(saved[leaf]).all() for leaf in saved.files)

    # A sink of the run: it hears notes, and looks which shared memory there is.

    def start(self, info: Any) -> None:
        self.mapped |= mapped_memory(os.getpid())
        assert len(self.mapped) > 1

    def note(self, text: str) -> None:
        self.notes.append(text)

    def iteration(self, row: Any) -> None:
        self.last_row = time.monotonic()

    def fragments(self, statuses: Any) -> None:
        if time.monotonic() - self.last_row > LIMIT + 20:
            raise TimeoutError("the run stands still")

    def finish(self, summary: Any) -> None: ...
    def close(self) -> None: ...


def mapped_memory(pid: int) -> set[str]:
    """The files in /dev/shm that a process looks into: arenas, boards and bells."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[5] for line in lines if "/dev/shm/" in line and "(deleted)" not in line}


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faulty:
    monkeypatch.setenv("FAULTY_HOME", str(tmp_path))
    return Faulty(tmp_path, monkeypatch)


def require_each_sample_once(rows: list[dict[str, Any]]) -> None:
    """Rows follow each other, and no observation was learnt from twice."""
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["steps"] for row in rows] == [32 * row["iteration"] for row in rows]
    assert all(row["growing"] == 1.0 for row in rows)
    assert all(row["behind"] == 0.0 for row in rows), "acted with old parameters"
    for env in range(4):
        ends = [row[f"{end}{env}"] for row in rows for end in ("first", "last")]
        assert ends == sorted(set(ends))


RESTARTS = {
    "environment": (
        "SingleLearnerFine",
        "actors[0] start 1 kill; actors[0] send 3 kill; actors[0] release 21 kill;"
        "actors[1] step 40 raise; actors[1] publish 19 kill; actors[1] step 41 stop",
    ),
    "actor": (
        "SingleLearnerCoarse",
        "actors[0] start 1 kill; actors[0] send 3 kill; actors[0] publish 3 kill;"
        "actors[1] wait 3 kill; actors[1] step 40 raise; actors[1] step 41 stop",
    ),
}


@pytest.mark.parametrize("kind", mostly_thorough(RESTARTS, ["actor"]))
def test_those_that_act_are_started_again_and_the_run_goes_on(kind: str, faulty: Faulty) -> None:
    policy, faults = RESTARTS[kind]
    count = len(faults.split(";"))
    run = faulty.train(policy, faults, steps=9600)
    assert run.summary["steps"] == 9600
    rows = faulty.rows()
    require_each_sample_once(rows)
    assert rows[-1]["restarts"] == count
    times = [row["seconds"] for row in rows]
    assert max(after - before for before, after in itertools.pairwise(times)) < LIMIT
    assert any("actors[1] was started again" in note and "SIGSTOP" in note for note in faulty.notes)
    assert any("actors[0] was started again" in note and "SIGKILL" in note for note in faulty.notes)
    assert any("environment" in note and "a fault of the user's" in note for note in faulty.notes)
    ledger = faulty.ledger()
    assert ledger["balance"] == 0
    assert ledger["consumed"] == 9600
    processes = faulty.json("processes")
    assert sum(one["restarts"] for one in processes.values()) == count
    assert processes["actors[0]"] == {"kind": kind, "pid": None, "restarts": 3}
    faulty.require_parameters()


def test_an_asynchronous_run_goes_on_too(faulty: Faulty) -> None:
    faults = "actors[0] publish 5 kill; actors[1] release 30 kill"
    run = faulty.train("Environments", faults, steps=9600, asynchronous=True)
    rows, ledger = faulty.rows(), faulty.ledger()
    assert run.summary["steps"] == 9600 == rows[-1]["steps"]
    assert rows[-1]["restarts"] == 2
    assert ledger["balance"] == 0
    assert ledger["consumed"] == 9600


@pytest.mark.parametrize("asynchronous", mostly_thorough([False, True], [True]))
def test_actors_that_fill_a_memory_are_started_again(asynchronous: bool, faulty: Faulty) -> None:
    faults = "actors[0] publish 5 kill; actors[1] step 40 raise"
    run = faulty.train("ReplayShards", faults, 3200, kind=Remembering, asynchronous=asynchronous)
    ledger = faulty.ledger()
    assert run.summary["steps"] == 3200
    ahead = ledger["consumed"] - 3200  # what the memory took in while the learner made its last update
    assert 0 <= ahead <= 320 * asynchronous
    assert ledger["balance"] == 0
    assert faulty.rows()[-1]["restarts"] == 2


@pytest.mark.parametrize("point", mostly_thorough(["start 1", "publish 5"], ["publish 5"]))
def test_a_memory_that_is_gone_ends_the_run(point: str, faulty: Faulty) -> None:
    message = faulty.fails("ReplayShards", f"replay[1] {point} kill", kind=Remembering, shards=2)
    assert message.startswith("replay[1], a process of kind replay, failed: exited with SIGKILL")
    assert "faulty_code.py:" in message
    if point != "start 1":
        faulty.require_parameters()


def test_what_cannot_be_asked_for_again_ends_the_run(faulty: Faulty) -> None:
    fault = "actors[0] publish 30 kill"
    message = faulty.fails("SingleLearnerFine", fault, env="graph/CartPole-v1")
    assert message.startswith("actors[0], a process of kind environment, failed: exited with SIGKILL")
    faulty.require_parameters()


def test_a_sink_that_fails_leaves_no_process_behind(faulty: Faulty) -> None:
    faulty.start = lambda info: [][0]  # type: ignore[method-assign]
    with pytest.raises(IndexError) as kept:  # and with it every frame that it came through
        faulty.train("SingleLearnerFine", "")
    assert not [name for name in descendants().values() if "python" in name], kept


ENDS = {
    "policy killed at start-up": ("Environments", "policies[0] start 1 kill"),
    "policy killed with a slot": ("Environments", "policies[0] publish 40 kill"),
    "policy stopped": ("Environments", "policies[0] release 40 stop"),
    "policy raises in a stage": ("Environments", "policies[0] stage 20 raise", "act"),
    "learner killed at start-up": ("SingleLearnerCoarse", "learner[0] start 1 kill"),
    "learner killed with a slot": ("SingleLearnerCoarse", "learner[0] release 3 kill"),
    "learner stopped": ("SingleLearnerCoarse", "learner[0] release 3 stop"),
    "learner raises in a stage": ("SingleLearnerCoarse", "learner[0] stage 3 raise", "learn"),
    "server killed at start-up": ("Central", "server[0] start 1 kill"),
    "server killed with a slot": ("Central", "server[0] release 3 kill"),
    "server stopped": ("Central", "server[0] release 3 stop"),
    "server raises in a stage": ("Central", "server[0] stage 3 raise", "apply"),
    "worker of a server killed": ("Central", "workers[1] publish 3 kill"),
    "first of two killed": ("MultiLearner", "learners[0] step 50 kill"),
    "second of two killed": ("MultiLearner", "learners[1] step 50 kill"),
    "second of two killed at start-up": ("MultiLearner", "learners[1] start 1 kill"),
    "second of two stopped": ("MultiLearner", "learners[1] step 50 stop"),
    "first of two raises in a stage": ("MultiLearner", "learners[0] stage 3 raise", "learn"),
}
CAUSES = {
    "kill": "exited with SIGKILL",
    "stop": "is stopped (SIGSTOP)",
    "raise": "ValueError: a fault of the user's",
}
KINDS = {"policies": "policy", "server": "server"}


ALWAYS = (
    "policy killed with a slot",
    "learner killed at start-up",
    "learner stopped",
    "server killed with a slot",
    "first of two raises in a stage",
)


@pytest.mark.parametrize("case", mostly_thorough(ENDS, ALWAYS))
def test_those_that_learn_end_the_run(case: str, faulty: Faulty, capfd: pytest.CaptureFixture[str]) -> None:
    policy, fault, *hooked = ENDS[case]
    worker, point, _, deed = fault.split()
    message = faulty.fails(policy, fault, hooked="".join(hooked))
    kind = KINDS.get(worker.split("[")[0], "learner")
    assert message.startswith(f"{worker}, a process of kind {kind}, failed: {CAUSES[deed]}")
    assert "\n  in the loop at " in message
    assert "faulty_code.py:" in message
    assert ("Traceback (most recent call last)" in message) == (deed == "raise")
    assert not faulty.notes or not any("started again" in note for note in faulty.notes)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err == ""
    if point != "start":
        faulty.require_parameters()
        assert faulty.rows()
