"""Partition: what crosses under each policy, and which cuts are refused."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import graphs
import pytest
from cuts import Assigned
from odd import Feedback, SharedByActing
from small import Explicit, QLearning, Reinforce

import sherd
from sherd.envs import describe
from sherd.errors import UsageError
from sherd.graph import check
from sherd.optimise import optimise
from sherd.policies import BUILT_IN, DistributionPolicy, Fragment, load_policy
from sherd.policies.base import LEARNING, ROLES
from sherd.policies.central import Central
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.environments import Environments
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.multi import MultiLearner
from sherd.policies.partition import bytes_of, part_names, partition
from sherd.policies.project import projection
from sherd.policies.traffic import traffic

ROLLOUT = {"action", "extra", "first", "next_obs", "obs", "reward", "terminated", "truncated"}
rollout = {f"rollout.{name}" for name in ROLLOUT}


def crossings(policy, graph=None):
    """What crosses after optimising: from, to, how, how often, what."""
    cut = optimise(partition(graph or graphs.feed_forward(), policy))
    return [(c.source, c.target, c.how, c.times, set(part_names(cut.graph, c))) for c in cut.crossings]


def test_coarse_gathers_rollouts_and_broadcasts_parameters():
    assert crossings(SingleLearnerCoarse(actors=4)) == [
        ("actors", "learner", "rows", 1, rollout),
        ("learner", "actors", "shared", 1, {"scales", "learner.params"}),
    ]


def test_fine_exchanges_observations_and_actions_at_every_step():
    kept = {"rollout.next_obs", "rollout.reward", "rollout.terminated", "rollout.truncated"}
    assert crossings(SingleLearnerFine(actors=4)) == [
        ("learner", "actors", "rows", 128, {"action"}),
        ("actors", "learner", "rows", 128, {"env.first", "env.obs"}),
        ("actors", "learner", "rows", 1, kept),  # what acting saw and chose is there already
    ]


def test_what_was_received_in_a_loop_is_not_sent_again_behind_it():
    """Who steps has had every action; it stacks them itself and is sent only the rest of what acting made."""
    owners = {node.name: "learner" for node in graphs.feed_forward().nodes()} | {"explore": "policy"}
    sent = crossings(Assigned(tuple(owners.items())))
    assert [(times, what) for source, _, _, times, what in sent if source == "policy"] == [
        (128, {"action"}),
        (1, {"rollout.extra"}),
    ]


def test_environments_sends_each_part_from_where_it_is():
    chosen = {"rollout.action", "rollout.extra"}
    assert crossings(Environments(actors=4, policies=2, learners=2)) == [
        ("policies", "actors", "rows", 128, {"action"}),
        ("actors", "policies", "rows", 128, {"env.first", "env.obs"}),
        ("actors", "learners", "rows", 1, rollout - chosen),
        ("policies", "learners", "rows", 1, chosen),
        ("learners", "policies", "shared", 1, {"scales", "learner.params"}),
    ]


def test_central_averages_gradients_and_returns_parameters():
    assert crossings(Central(workers=2)) == [
        ("workers", "server", "shared", 1, {"rate"}),
        ("workers", "server", "mean", 16, {"loss[0]", "loss[1]"}),
        ("server", "workers", "shared", 16, {"learner.params"}),
    ]


def test_a_single_worker_has_nothing_to_average_with():
    assert "mean" not in {how for _, _, how, _, _ in crossings(Central(workers=1))}


@pytest.mark.parametrize("name", ["Single", "MultiLearner"])
def test_nothing_crosses_when_one_fragment_has_everything(name):
    assert crossings(BUILT_IN[name]()) == []


def test_only_replicas_that_learn_are_collective():
    graph = graphs.feed_forward()
    assert partition(graph, MultiLearner(learners=2)).collective("learners")
    assert not partition(graph, MultiLearner(learners=1)).collective("learners")
    assert not partition(graph, SingleLearnerCoarse(actors=4)).collective("actors")
    environments = partition(graph, Environments(actors=4, learners=2))
    assert environments.collective("learners")
    assert not environments.collective("actors")
    assert not partition(graph, Central(workers=2, asynchronous=True)).collective("workers")


def test_memory_stays_with_whoever_acts():
    graph = graphs.recurrent()
    coarse = optimise(partition(graph, SingleLearnerCoarse()))
    assert "memory" in {held.name for held in projection(coarse, "actors").held if held.owned}
    # Learning needs the memory from before the steps; it is what the last iteration's message left.
    sent = {name for c in coarse.crossings for name in part_names(graph, c) if c.source == "actors"}
    assert "memory" in sent


def test_bytes_are_those_of_all_replicas():
    cut = optimise(partition(graphs.feed_forward(), SingleLearnerFine(actors=4)))
    assert [bytes_of(cut, c) for c in cut.crossings] == [8 * 4, 8 * (16 + 1), 128 * 8 * (16 + 4 + 1 + 1)]
    central = optimise(partition(graphs.feed_forward(), Central(workers=4)))
    gradients = (9155 + 6) * 4
    assert [bytes_of(central, c) for c in central.crossings] == [4, 4 * gradients, 9155 * 4]
    (reduction,) = traffic(partition(graphs.feed_forward(), MultiLearner(learners=4)))
    assert (reduction.how, reduction.times, reduction.size) == ("all-reduce", 16, 4 * gradients)


@pytest.mark.parametrize(
    ("policy", "manners"),
    [
        (
            Environments(actors=4, policies=2, learners=2),
            ["scatter", "gather", "gather", "pairwise", "broadcast", "all-reduce"],
        ),
        (Environments(actors=4), ["scatter", "gather", "gather", "send", "send"]),
        (SingleLearnerCoarse(actors=1), ["send", "send"]),
        (Central(workers=2), ["send", "mean", "broadcast"]),
    ],
)
def test_manner_follows_from_replicas(policy, manners):
    found = [one.how for one in traffic(optimise(partition(graphs.feed_forward(), policy)))]
    assert sorted(found) == sorted(manners)


# -- every program is well formed


@functools.cache
def traced(algorithm):
    return sherd.trace(algorithm, describe("CartPole-v1"), envs=8)


@pytest.mark.parametrize("policy", [name for name in BUILT_IN if name != "Fused"])
@pytest.mark.parametrize("algorithm", [Reinforce(), Explicit(), QLearning()], ids=lambda a: type(a).__name__)
def test_programs_of_small_algorithms_are_well_formed(algorithm, policy):
    require_well_formed(partition(traced(algorithm), BUILT_IN[policy]()))


@pytest.mark.parametrize("policy", [name for name in BUILT_IN if name != "Fused"])
def test_programs_of_recurrent_ppo_are_well_formed(policy):
    require_well_formed(partition(graphs.recurrent(), BUILT_IN[policy]()))


def require_well_formed(cut):
    for one in (cut, optimise(cut)):
        owned = []
        for fragment in one.fragments:
            part = projection(one, fragment.name)
            check(part.graph, whole=False)
            owned += [held.cell for held in part.held if held.owned and not held.path]
        full = [cell.name for cell in one.graph.cells if cell.env_axes]
        assert {cell for cell in owned if cell in full} == set(full)


def test_a_fragment_without_steps_is_no_whole_graph():
    part = projection(partition(graphs.feed_forward(), SingleLearnerCoarse()), "learner")
    with pytest.raises(UsageError, match="never steps the environment"):
        check(part.graph)
    check(part.graph, whole=False)


# -- refused


def refusal(policy, algorithm):
    with pytest.raises(UsageError) as caught:
        partition(traced(algorithm), policy)
    return str(caught.value)


@dataclass(frozen=True)
class ReplayAtTheActors(SingleLearnerCoarse):
    """Actors note what is in the replay, the learner draws from it and sets priorities."""

    def owner(self, node):
        return "actors" if node.name == "admit" else super().owner(node)


def test_a_cell_with_two_owners():
    """A state cell is written in one place of a loop, so only a handle's own writes can be torn apart."""
    message = refusal(ReplayAtTheActors(), QLearning())
    assert "ReplayAtTheActors would give the state cell 'replay_index' two owners" in message
    assert "'admit' in 'actors'" in message
    assert "'reprioritise' in 'learner'" in message
    assert "replay.add(env.rollout, capacity=self.capacity, prioritised=True)" in message
    assert "replay.reprioritise(sample" in message
    assert message.count("small.py:") == 2
    assert "fix: give both nodes to one fragment" in message
    partition(traced(QLearning()), SingleLearnerCoarse())


def test_a_shared_cell_that_several_actors_would_write():
    message = refusal(SingleLearnerCoarse(actors=2), SharedByActing())
    assert "would give the state cell 'seen' 2 owners" in message
    assert "every replica of 'actors' would write its own in 'look'" in message
    assert "state.seen = self.look(state.seen, env.obs)" in message
    assert "fix: write 'seen' in a @learn stage, declare it per_env(...), or use one replica" in message
    partition(traced(SharedByActing()), SingleLearnerCoarse(actors=1))


def test_an_actor_that_would_starve():
    message = refusal(SingleLearnerCoarse(asynchronous=True), Feedback())
    assert "would starve 'actors': it runs ahead of 'learner'" in message
    assert "(judge)" in message
    assert "state.bonus = self.judge(env.rollout)" in message
    assert "fix: leave out --policy.asynchronous" in message
    partition(traced(Feedback()), SingleLearnerCoarse())
    partition(traced(Reinforce()), SingleLearnerCoarse(asynchronous=True))


@dataclass(frozen=True)
class Forgetful(DistributionPolicy):
    def fragments(self):
        return (Fragment("a", ("env", "act")), Fragment("b", ("learn", "grad")))


@dataclass(frozen=True)
class Doubled(DistributionPolicy):
    def fragments(self):
        return (Fragment("a", ("env", "act")), Fragment("b", ("act", *LEARNING)))


@dataclass(frozen=True)
class SameName(DistributionPolicy):
    def fragments(self):
        return (Fragment("a", ("env", "act")), Fragment("a", LEARNING))


@dataclass(frozen=True)
class Astray(DistributionPolicy):
    def fragments(self):
        return (Fragment("a", ROLES),)

    def owner(self, node):
        return "b" if node.role == "grad" else "a"


@dataclass(frozen=True)
class Nameless(DistributionPolicy):
    pass


def test_a_role_that_no_fragment_has():
    message = refusal(Forgetful(), Reinforce())
    assert "Forgetful gives the role 'apply' of 'update' to no fragment" in message
    assert "learner.step(self.loss, self.advantages(rollout))" in message
    assert "fix: name 'apply' among the roles of one of its fragments" in message


def test_a_role_or_a_name_that_two_fragments_have():
    assert "Doubled names act twice among its fragments" in refusal(Doubled(), Reinforce())
    assert "SameName names a twice among its fragments" in refusal(SameName(), Reinforce())


def test_a_node_given_to_nobody():
    assert "Astray gives nodes to 'b', which is none of its fragments: ['a']" in refusal(
        Astray(), Reinforce()
    )


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (SingleLearnerCoarse(actors=3), "8 environments cannot be shared evenly by 3 actors"),
        (SingleLearnerFine(actors=0), "0 actors cannot work"),
        (MultiLearner(learners=5), "8 environments cannot be shared evenly by 5 learners"),
        (Environments(actors=2, policies=4), "2 actors cannot be shared evenly by 4 policies"),
        (Environments(learners=2, asynchronous=True), "cannot be asynchronous"),
        (SingleLearnerCoarse(asynchronous=True, max_staleness=-1), "cannot be negative"),
    ],
)
def test_replicas_that_do_not_fit(policy, words):
    message = refusal(policy, Reinforce())
    assert words in message


def test_fragments_that_own_nothing_are_left_out():
    @dataclass(frozen=True)
    class Spare(DistributionPolicy):
        def fragments(self):
            return (Fragment("all", ("env", "act", "learn", "grad", "apply")), Fragment("spare", ("replay",)))

    assert [f.name for f in partition(traced(Reinforce()), Spare()).fragments] == ["all"]


@pytest.mark.parametrize(
    ("roles", "words"),
    [("learn grad", "roles are a tuple of names"), (("env", "learning"), "unknown role 'learning'")],
)
def test_roles_that_are_none(roles, words):
    with pytest.raises(UsageError, match=words):
        Fragment("mine", roles)


def test_a_policy_without_fragments():
    with pytest.raises(UsageError, match="does not define fragments"):
        DistributionPolicy().require(describe("CartPole-v1"), 4)


@pytest.mark.parametrize("ring", [0, -1])
def test_a_ring_of_no_groups(ring):
    with pytest.raises(UsageError, match="ring"):
        SingleLearnerFine(ring=ring).require(describe("CartPole-v1"), 4)


@pytest.mark.parametrize("name", ["", ":", ":Pods", "pods:"])
def test_names_of_nothing(name):
    with pytest.raises(UsageError):
        load_policy(name)
