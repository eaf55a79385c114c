"""Cutting a graph and optimising the cut change where things happen, and nothing else.

The judge is the reference evaluator: fragments run in threads, and cells and reports after two iterations
must equal those of the uncut graph to the bit.
"""

from __future__ import annotations

import dataclasses

import choreography
import jax
import numpy as np
import pytest
from choreography import require_same, run_fragments
from cuts import ALGORITHMS, ENV, ENVS, POLICIES, Assigned, traced, uncut, world
from graphs import Replaying
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from small import Reinforce, tree_difference
from thorough import mostly_thorough

from sherd.author import learn, shared
from sherd.envs import describe
from sherd.errors import UsageError
from sherd.graph import check, trace
from sherd.graph.ir import Scope, walk
from sherd.lower.xla import run_once
from sherd.optimise import (
    APART,
    TOGETHER,
    batch_replicas,
    coalesce,
    fission,
    form_rings,
    merge_colocated,
    optimise,
    prefetch,
    split_loops,
)
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.multi import MultiLearner
from sherd.policies.partition import bytes_of, partition
from sherd.policies.project import projection
from sherd.policies.shards import ReplayShards
from sherd.policies.text import render

PASSES = (split_loops, form_rings, coalesce, prefetch, batch_replicas, merge_colocated)
each_algorithm = pytest.mark.parametrize("name", ALGORITHMS)
calmly = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))


def require_equal(name, cut):
    """Every program is well formed and printable, and together they do what the uncut graph does."""
    for fragment in cut.fragments:
        check(projection(cut, fragment.name).graph, whole=False)
    assert render(cut)
    wanted, found = uncut(name), run_fragments(world(name), cut)
    for cell, concrete in wanted.cells.items():
        if jax.tree.leaves(concrete):
            require_same(concrete, found.cells[cell], f"the cell {cell}")
    assert found.told == wanted.told
    assert found.messages == {c.name: 2 * c.times for c in cut.crossings}


def total_bytes(cut):
    return sum(c.times * bytes_of(cut, c) for c in cut.crossings)


def messages(cut):
    return sum(c.times for c in cut.crossings)


@pytest.mark.parametrize("name", mostly_thorough(["ppo", "replay"], ["replay"]))
def test_the_evaluator_agrees_with_the_compiled_program(name):
    graph, place = traced(name), world(name)
    cells = place.begin(graph)
    for iteration in range(2):
        cells, _ = run_once(graph, place.stepping, cells, place.frame(iteration))
    assert tree_difference(cells["learner"], uncut(name).cells["learner"]) < 1e-5


@each_algorithm
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_means_the_same(name, policy):
    cut = partition(traced(name), POLICIES[policy])
    for passes in ((), APART, TOGETHER):
        require_equal(name, optimise(cut, passes))


@calmly
@given(st.sampled_from(sorted(POLICIES)), st.lists(st.sampled_from(PASSES), max_size=5))
def test_passes_in_any_order_mean_the_same(policy, passes):
    require_equal("ppo", optimise(partition(traced("ppo"), POLICIES[policy]), tuple(passes)))


def owners(name):
    nodes = [node.name for node in traced(name).nodes()]
    return st.lists(st.sampled_from("abc"), min_size=len(nodes), max_size=len(nodes)).map(
        lambda letters: tuple(zip(nodes, letters))
    )


def cut_as(name, assignment):
    """The cut that an assignment makes; one that tears a cell apart is not an example."""
    try:
        return partition(traced(name), Assigned(assignment))
    except UsageError as error:
        if "two owners" not in str(error):
            raise
        return reject()


@each_algorithm
def test_any_assignment_means_the_same(name):
    @calmly
    @given(owners(name), st.permutations((split_loops, coalesce, prefetch, form_rings)), st.integers(0, 4))
    def holds(assignment, passes, how_many):
        require_equal(name, optimise(cut_as(name, assignment), tuple(passes[:how_many])))

    holds()


@pytest.mark.parametrize("shards", [1, 2])
def test_a_shard_that_hears_nothing_sends_all_its_draws_at_once(shards):
    """One message for all updates of an iteration, and a learner whose loop has no messages in it."""
    cut = partition(traced("draws"), ReplayShards(shards=shards))
    split = split_loops(cut)
    drawn = [c for c in cut.crossings if (c.source, c.target, c.times) == ("replay", "learner", 2)]
    assert drawn
    assert {c.times for c in split.crossings} == {1}
    assert total_bytes(split) == total_bytes(cut)
    [loop] = [item for item in projection(split, "learner").graph.root.body if isinstance(item, Scope)]
    assert {node.role for node in walk(loop)} == {"learn", "grad", "apply"}
    require_equal("draws", split)


@pytest.mark.parametrize("why", ["priorities", "bytes"])
def test_draws_that_wait_or_are_large_are_sent_one_by_one(why, monkeypatch):
    cut = partition(traced("replay" if why == "priorities" else "draws"), ReplayShards())
    if why == "bytes":
        assert split_loops(cut) is not cut
        monkeypatch.setattr(fission, "_MOST_BYTES", 100)
    assert split_loops(cut) is cut


def test_a_loop_of_actors_stays_whole():
    """Split, its actors would take turns from a stack, which is learning, and so would learn together."""

    @dataclasses.dataclass(frozen=True)
    class Warmed(Reinforce):
        @learn
        def warm(self, params):
            return {"w": 1.5 * params["w"]}

        def loop(self, env, learner):
            for _ in env.steps(self.horizon):
                action, extra = self.explore(self.warm(learner.params), env.obs)
                env.step(action, extra)
            learner.step(self.loss, self.advantages(env.rollout))

    cut = partition(trace(Warmed(), describe(ENV), ENVS), SingleLearnerCoarse(actors=2))
    assert split_loops(cut) is cut


def test_a_loop_that_carries_what_nobody_computes_stays_whole():
    """Whoever takes part in it knows such a cell; split, the shard would no longer take part."""

    @dataclasses.dataclass(frozen=True)
    class Trading(Replaying):
        def state(self, params):
            return {**super().state(params), "other": shared(params)}

        def loop(self, env, learner, state, replay):
            for _ in env.steps(self.steps):
                env.step(self.explore(learner.params, env.obs))
            replay.add(env.rollout, capacity=1000)
            for sample in replay.sample(16, times=2):
                learner.step(self.loss, state.target, sample)
                state.target, state.other = state.other, state.target

    cut = partition(trace(Trading(), describe(ENV), ENVS), ReplayShards())
    assert split_loops(cut) is cut


@each_algorithm
def test_coalescing_saves_messages_and_no_bytes(name):
    @calmly
    @given(owners(name))
    def holds(assignment):
        cut = cut_as(name, assignment)
        fewer = coalesce(cut)
        assert messages(fewer) <= messages(cut)
        assert total_bytes(fewer) == total_bytes(cut)
        assert parts(fewer) == parts(cut)
        assert coalesce(fewer).crossings == fewer.crossings

    holds()


def parts(cut):
    return sorted(f"{c.source}>{c.target} {part}" for c in cut.crossings for part in c.parts)


def test_coalescing_makes_one_message_of_a_rollout():
    cut = partition(traced("ppo"), SingleLearnerCoarse())
    assert len(cut.crossings) > 8
    assert [(c.name, len(c.parts)) for c in coalesce(cut).crossings] == [
        ("actors>learner#1", 8),
        ("learner>actors#1", 2),
    ]


def test_prefetch_only_waits_later():
    cut = coalesce(partition(traced("ppo"), SingleLearnerCoarse()))
    later = prefetch(cut)
    assert [dataclasses.replace(c, received=0) for c in later.crossings] == [
        dataclasses.replace(c, received=0) for c in cut.crossings
    ]
    for before, after in zip(cut.crossings, later.crossings):
        assert before.received <= after.received < after.first_use


def test_prefetch_puts_a_wait_off_until_the_use():
    """The rate crosses early and is used in the last loop: the receiver first does everything in between."""
    nodes = {node.name: "b" for node in traced("ppo").nodes()} | {"progress": "a", "rate": "a"}
    late = prefetch(coalesce(partition(traced("ppo"), Assigned(tuple(nodes.items())))))
    body = [getattr(item, "name", "") for item in projection(late, "b").graph.root.body]
    early = coalesce(partition(traced("ppo"), Assigned(tuple(nodes.items()))))
    assert body.index("receive a>b#1") == len(body) - 2
    assert late.crossings[0].sent == early.crossings[0].sent


def test_what_is_together_needs_no_messages():
    cut = optimise(partition(traced("ppo"), SingleLearnerFine(actors=4)), TOGETHER)
    assert [(f.name, f.replicas) for f in cut.fragments] == [("actors+learner", 1)]
    assert cut.crossings == ()


def test_fragments_that_hold_different_environments_are_not_merged():
    cut = partition(traced("ppo"), SingleLearnerFine(actors=4))
    assert merge_colocated(cut) is cut


def test_batching_replicas_ends_the_collective():
    cut = partition(traced("ppo"), MultiLearner(learners=2))
    assert cut.collective("learners")
    assert not batch_replicas(cut).collective("learners")


@pytest.mark.parametrize(
    ("actors", "ring", "groups"), [(1, 2, 2), (2, 2, 2), (4, 2, 1), (1, 3, 2), (2, 1, 1)]
)
def test_rings_are_groups_of_equal_size(actors, ring, groups):
    cut = form_rings(partition(traced("ppo"), SingleLearnerFine(actors=actors, ring=ring)))
    assert (cut["actors"].ring, cut["learner"].ring) == (groups, 1)
    assert ENVS // actors % groups == 0


def test_nobody_who_acts_by_itself_forms_a_ring():
    cut = form_rings(partition(traced("ppo"), SingleLearnerCoarse()))
    assert {f.ring for f in cut.fragments} == {1}


def test_the_judge_sees_what_is_never_sent():
    cut = coalesce(partition(traced("ppo"), SingleLearnerCoarse()))
    first, *others = cut.crossings
    never = dataclasses.replace(first, sent=first.sent - 1)  # no item of that scope ends there
    with pytest.raises(RuntimeError, match="never arrives"):
        require_equal("ppo", dataclasses.replace(cut, crossings=(never, *others)))


def test_the_judge_sees_what_is_altered_on_the_way(monkeypatch):
    send = choreography.Mail.send

    def altered(mail, name, message):
        send(mail, name, jax.tree.map(lambda leaf: leaf + 1 if leaf.dtype == np.float32 else leaf, message))

    monkeypatch.setattr(choreography.Mail, "send", altered)
    with pytest.raises(AssertionError, match="differs"):
        require_equal("ppo", partition(traced("ppo"), SingleLearnerCoarse()))
