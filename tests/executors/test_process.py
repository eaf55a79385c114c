"""The process executor: what runs where, what is written down, and that nothing is left."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import jax
import numpy as np
import pytest
import straggling_env
from leaks import no_leaks  # noqa: F401 - a fixture
from small import Reinforce, tree_difference

import sherd
from sherd.algorithms.ppo import PPO
from sherd.errors import UsageError
from sherd.executors import choose_executor
from sherd.policies import Fragment, Fused, Single
from sherd.policies.central import Central
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.multi import MultiLearner
from sherd.runtime.events import MemorySink

pytestmark = pytest.mark.usefixtures("no_leaks")

TINY = PPO(horizon=16, epochs=1, minibatches=2, hidden=(8,))
RUN = {"envs": 4, "eval_episodes": 0, "seed": 3, "steps": 4 * 16 * 3}


def test_simulators_run_without_jax_and_the_run_accounts_for_itself(tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv("NOSY_ENV", str(notes))
    sink = MemorySink()
    policy = SingleLearnerFine(actors=2, ring=2)
    run = sherd.train(TINY, "nosy_env:make", policy=policy, sinks=[sink], run_dir=tmp_path / "run", **RUN)
    found = {int(file.stem): json.loads(file.read_text()) for file in notes.iterdir()}
    children = {pid: what for pid, what in found.items() if pid != os.getpid()}
    simulators = [what for what in children.values() if not what["jax"]]
    assert len(simulators) == 2
    assert all(what["parent"] == os.getpid() and what["megabytes"] < 150 for what in simulators)

    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [64, 128, 192]
    assert [row["restarts"] for row in rows] == [0, 0, 0]
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["produced"] == ledger["consumed"] == 192
    assert ledger["balance"] == ledger["in_flight"] == 0
    assert run.summary["bottleneck"]
    assert any(note.startswith("plan: 3 processes") for note in sink.notes)
    assert sherd.evaluate(tmp_path / "run", episodes=2).return_mean > 0


def test_replicas_that_end_apart_are_an_error():
    """That they end alike is part of the conformance matrix; this is what happens if they do not."""
    from sherd.executors.process import ProcessRun

    run = object.__new__(ProcessRun)
    run._digests, run._leader = {0: "a", 1: "b"}, "learners"
    with pytest.raises(sherd.RunError, match="different parameters"):
        run._require_agreement()


@dataclass(frozen=True)
class Halves(sherd.DistributionPolicy):
    """A user's own cut: everything that prepares batches apart from everything that updates."""

    def fragments(self):
        preparing = Fragment("preparing", ("env", "act", "learn"))
        return (preparing, Fragment("updating", ("grad", "apply", "replay", "eval")))


def test_a_users_own_policy_means_the_same():
    run = sherd.train(TINY, "CartPole-v1", policy=Halves(), **RUN)
    whole = sherd.train(TINY, "CartPole-v1", **RUN)
    assert tree_difference(run.params, whole.params) < 1e-6


@dataclass(frozen=True)
class Blind(Reinforce):
    """Acts without a look at what it sees, so that simulators have nothing to say between two steps."""

    @sherd.act
    def guess(self, params, key):
        return jax.vmap(lambda one: jax.random.categorical(one, params["w"].sum(0)))(key).astype(np.int32)

    def loop(self, env, learner):
        for _ in env.steps(self.horizon):
            env.step(self.guess(learner.params))
        learner.step(self.loss, self.advantages(env.rollout))


def test_acting_need_not_look_at_observations():
    run = sherd.train(Blind(), "CartPole-v1", policy=SingleLearnerFine(actors=2), **RUN)
    whole = sherd.train(Blind(), "CartPole-v1", **RUN)
    assert tree_difference(run.params, whole.params) < 1e-6


def test_gradients_are_applied_as_they_arrive():
    policy = Central(workers=2, asynchronous=True)
    run = sherd.train(TINY, "CartPole-v1", policy=policy, **RUN)
    # Two workers, three iterations of two minibatches each: every gradient is an update of its own.
    assert int(run.cells["learner"].updates) == 2 * 3 * 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params))


def test_auto_runs_processes_only_where_a_policy_asks_for_several():
    assert choose_executor("auto", SingleLearnerCoarse()) == "process"
    assert choose_executor("auto", SingleLearnerCoarse(actors=1)) == "process"
    assert choose_executor("auto", MultiLearner(learners=1)) == "inline"
    assert choose_executor("auto", Fused()) == choose_executor("auto", Single()) == "inline"
    assert choose_executor("inline", SingleLearnerCoarse()) == "inline"


def test_shares_must_be_even():
    with pytest.raises(UsageError, match="4 environments cannot be shared evenly by 3 actors"):
        sherd.train(TINY, "CartPole-v1", policy=SingleLearnerCoarse(actors=3), **RUN)


def test_fused_is_not_given_to_other_processes():
    with pytest.raises(UsageError, match="one program in this process"):
        sherd.train(TINY, "graph/CartPole-v1", policy=Fused(devices=2), executor="process", **RUN)


@pytest.mark.parametrize("max_staleness", [4, 3])
def test_whoever_need_not_wait_for_a_straggler_begins_the_next_rollout(max_staleness, tmp_path, monkeypatch):
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setenv(straggling_env.FOLDER, str(notes))
    policy = SingleLearnerCoarse(actors=2, asynchronous=True, max_staleness=max_staleness)
    algorithm = PPO(horizon=straggling_env.TURNS, epochs=1, minibatches=2, hidden=(8,))
    settings = {"envs": 8, "eval_episodes": 0, "steps": 8 * straggling_env.TURNS * 8}
    sherd.train(
        algorithm, "straggling_env:make", policy=policy, sinks=[], run_dir=tmp_path / "run", **settings
    )
    leads = [int(line) for file in notes.iterdir() for line in file.read_text().split()]
    assert len(leads) >= 8
    if max_staleness < 4:  # some of those rollouts would be dropped
        assert max(leads) == 0
    else:
        assert 0 < max(leads) <= straggling_env.TURNS // 2
    ledger = json.loads((tmp_path / "run" / "ledger.json").read_text())
    assert ledger["balance"] == 0
    assert ledger["consumed"] >= settings["steps"]
    assert not ledger["dropped"]
