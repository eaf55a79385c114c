"""Placement: a process for every replica, threads that fit, and a fate for each kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sherd.algorithms.ppo import PPO
from sherd.envs import describe
from sherd.graph import trace
from sherd.plan import place
from sherd.policies.central import Central
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.environments import Environments
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.multi import MultiLearner
from sherd.policies.partition import partition


@pytest.fixture(scope="module")
def graph():
    return trace(PPO(horizon=4), describe("CartPole-v1"), 8)


def plan(graph, policy, cores):
    return place(partition(graph, policy), tuple(range(cores)))


AHEAD = SingleLearnerCoarse(actors=2, asynchronous=True)


@pytest.mark.parametrize("policy", [AHEAD, MultiLearner(), Central(4)])
@pytest.mark.parametrize("cores", [1, 2, 4, 16])
def test_no_more_threads_than_cores_unless_there_are_more_processes(graph, policy, cores):
    made = plan(graph, policy, cores)
    threads = sum(one.threads for one in made.placements)
    assert threads <= max(cores, len(made.placements))
    assert min(one.threads for one in made.placements) >= 1


@pytest.mark.parametrize("policy", [SingleLearnerCoarse(), SingleLearnerFine(), Environments(4, 2)])
@pytest.mark.parametrize("cores", [1, 2, 4, 16])
def test_a_learner_that_all_others_wait_for_has_every_core(graph, policy, cores):
    made = plan(graph, policy, cores)
    *others, last = made.placements
    assert (last.threads, last.cores) == (cores, ())
    assert all(one.threads == 1 for one in others)


def test_processes_have_cores_of_their_own_where_there_are_enough(graph):
    made = plan(graph, AHEAD, 8)
    cores = [core for one in made.placements for core in one.cores]
    assert len(set(cores)) == len(cores) == 8
    assert [one.threads for one in made.placements] == [1, 1, 6]
    assert [one.cores for one in plan(graph, SingleLearnerCoarse(actors=2), 8).placements] == [(0,), (1,), ()]


def test_nobody_is_pinned_where_processes_outnumber_cores(graph):
    assert all(not one.cores for one in plan(graph, SingleLearnerCoarse(actors=2), 2).placements)


def test_simulators_that_wait_have_one_core_for_all_their_threads(graph):
    waiting = replace(graph, spec=replace(graph.spec, waits=True))
    cores = {one.name: one.cores for one in plan(waiting, SingleLearnerCoarse(actors=4), 2).placements}
    assert cores.pop("learner[0]") == ()
    assert list(cores.values()) == [(0,), (1,), (0,), (1,)]


def test_a_learner_yields_to_simulators_that_wait_if_nobody_waits_for_it(graph):
    waiting = replace(graph, spec=replace(graph.spec, waits=True))
    assert [one.name for one in plan(waiting, AHEAD, 2).placements if one.yields] == ["learner[0]"]
    assert (
        "learner[0]     learner      1 thread   any core    ends the run if it dies; yields to actors"
        in str(plan(waiting, AHEAD, 2))
    )
    others = (waiting, SingleLearnerCoarse(actors=2), 2), (graph, AHEAD, 2), (waiting, AHEAD, 8)
    assert not any(one.yields for given in others for one in plan(*given).placements)


def test_nobody_is_pinned_where_replicas_learn_together(graph):
    """What carries their messages needs a core as well: pinned, an all-reduce takes ten times as long."""
    assert all(not one.cores for one in plan(graph, MultiLearner(2), 8).placements)
    assert all(one.cores for one in plan(graph, Central(2, asynchronous=True), 8).placements)


def test_simulators_and_actors_are_restarted_and_learners_end_the_run(graph):
    fates = {one.fragment: one.restarts for one in plan(graph, Environments(2), 4).placements}
    assert fates["actors"] > 0
    assert fates["policies"] == fates["learners"] == 0
    assert plan(graph, SingleLearnerCoarse(), 4).placements[0].restarts > 0
    assert all(one.restarts == 0 for one in plan(graph, Central(), 4).placements)


def test_a_plan_shows_where_everything_runs(graph):
    text = str(plan(graph, SingleLearnerCoarse(actors=2), 4))
    assert text.splitlines() == [
        "plan: 3 processes on 4 cores",
        "  actors[0]      actor        1 thread   core 0      restarted up to 3 times",
        "  actors[1]      actor        1 thread   core 1      restarted up to 3 times",
        "  learner[0]     learner      4 threads  any core    ends the run if it dies",
    ]
