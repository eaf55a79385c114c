"""Dynamic batches: whatever order simulators answer in, the result is that of the loop in lockstep."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from small import tree_difference
from thorough import mostly_thorough

from sherd.algorithms.dqn import DQN
from sherd.algorithms.ppo import PPO
from sherd.envs import describe, make_host
from sherd.graph import trace
from sherd.graph.ir import Node
from sherd.lower import Order, build
from sherd.lower.begin import begin_host_program
from sherd.lower.host import HostProgram, Setting
from sherd.lower.parts import HostReceive, HostRegion, HostSend
from sherd.lower.schedules import HostSchedules
from sherd.lower.share import Share
from sherd.lower.units import HostUnits
from sherd.optimise import optimise
from sherd.policies.coarse import SingleLearnerCoarse
from sherd.policies.fine import SingleLearnerFine
from sherd.policies.partition import partition
from sherd.policies.project import projection
from sherd.policies.single import Single
from sherd.spaces import step_buffers

ENVS, UNITS, SEED, ITERATIONS = 8, 4, 5, 3
ROWS = ENVS // UNITS


class Simulators:
    """Steps four groups of CartPoles here, and answers for some of those that have actions, in any order."""

    def __init__(self, order):
        self.units = [(unit * ROWS, (unit + 1) * ROWS) for unit in range(UNITS)]
        self.envs = [make_host("CartPole-v1", ROWS, SEED, first_index=low) for low, _ in self.units]
        self.outs = [step_buffers(env.spec, ROWS) for env in self.envs]
        for env, out in zip(self.envs, self.outs):
            env.reset(out.obs)
        self.order, self.waiting, self.batches = order, [], []
        self.log = [[] for _ in self.units]

    def send_unit(self, unit, arrays):
        out = self.outs[unit]
        self.envs[unit].step(np.asarray(arrays[0]), out)
        self.log[unit].append([np.copy(a) for a in (out.next_obs, out.reward, out.terminated, out.truncated)])
        self.waiting.append(unit)

    def ready(self):
        count = self.order.integers(1, len(self.waiting) + 1)
        chosen = self.order.permutation(self.waiting)[:count].tolist()
        self.waiting = [unit for unit in self.waiting if unit not in chosen]
        self.batches.append(len(chosen))
        return chosen

    def take_unit(self, unit, places):
        out = self.outs[unit]
        first, obs = places
        np.copyto(first, out.terminated | out.truncated)
        np.copyto(obs, out.obs)

    def receive(self):
        """The rollout: next observations, rewards, terminations and truncations, [time, env, ...]."""
        whole = [
            np.concatenate([np.stack([turn[part] for turn in log]) for log in self.log], axis=1)
            for part in range(4)
        ]
        self.log = [[] for _ in self.units]
        return whole

    def release(self):
        """Nothing is shared."""


@pytest.mark.parametrize("network", mostly_thorough(["mlp", "gru"], ["mlp"]))
def test_any_order_of_arrival_gives_the_parameters_of_one_process(network):
    minibatches = 2 if network == "gru" else 4
    algorithm = PPO(horizon=8, epochs=2, minibatches=minibatches, network=network, memory_units=16)
    graph = trace(algorithm, describe("CartPole-v1"), ENVS)
    cut = optimise(partition(graph, SingleLearnerFine(actors=2, ring=2)))
    learner = projection(cut, "learner")
    simulators = Simulators(np.random.default_rng(0))
    ports = dict.fromkeys(learner.crossings, simulators)
    setting = Setting(SEED, ITERATIONS, Share.of_replica(ENVS), ports=ports)
    program = begin_host_program(learner.graph, learner.held, algorithm, setting)
    assert any(isinstance(part, HostUnits) for part in program._parts)
    program.cells["env.obs"] = np.concatenate([out.obs for out in simulators.outs])
    program.cells["env.first"] = np.ones(ENVS, bool)
    program.run(ITERATIONS)
    assert len(set(simulators.batches)) > 1  # batches of different sizes came up
    whole = build(Order(algorithm, "CartPole-v1", graph, Single(), SEED, ITERATIONS))
    whole.run(ITERATIONS)
    difference = tree_difference(program.cells["learner"].params, whole.cells["learner"].params)
    # On some processors a product's last bit depends on how many rows it has.
    assert difference < 1e-6
    for env in simulators.envs:
        env.close()


def test_an_actor_of_a_graph_environment_is_one_compiled_program():
    """Environment, acting and the loop over them are one XLA call; besides there are only messages."""
    algorithm = PPO(horizon=4)
    graph = trace(algorithm, describe("graph/CartPole-v1"), ENVS)
    actors = projection(optimise(partition(graph, SingleLearnerCoarse(actors=2))), "actors")

    class Nowhere:
        """Takes everything, and has the parameters that were there before."""

        def send(self, arrays):
            self.shapes = [np.shape(array) for array in arrays]

        def receive(self):
            return jax.tree.leaves(jax.tree.map(np.asarray, (cells["scales"], cells["learner.params"])))

        def release(self):
            """Nothing is shared."""

    from sherd.author.environments import graph_stepping
    from sherd.envs import make_graph

    env, port = make_graph("graph/CartPole-v1"), Nowhere()
    share = Share.of_replica(ENVS, 1, 2)
    stepping = graph_stepping(env)
    setting = Setting(0, 2, share, None, stepping, dict.fromkeys(actors.crossings, port))
    program = begin_host_program(actors.graph, actors.held, algorithm, setting, env)
    cells = program.cells
    assert [type(part) for part in program._parts] == [HostRegion, HostSend, HostReceive]
    program.run(2)
    assert {shape[:2] for shape in port.shapes} == {(4, ENVS // 2)}


def test_schedules_of_a_learner_compile_with_what_uses_them():
    """The learning rate is asked for before the rollout comes, and belongs to the call that learns."""
    graph = trace(DQN(horizon=4), describe("CartPole-v1"), ENVS)
    learner = projection(optimise(partition(graph, SingleLearnerCoarse(actors=1))), "learner")
    names = [node.name for node in learner.graph.root.body if isinstance(node, Node)]
    rate, rollout = names.index("rate"), names.index("receive actors>learner#1")
    assert rate < rollout  # so that there is something to delay
    setting = Setting(0, 2, Share.of_replica(ENVS), ports=dict.fromkeys(learner.crossings))
    kinds = [type(part) for part in HostProgram(learner.graph, setting)._parts]
    assert kinds == [HostSchedules, HostSend, HostReceive, HostRegion, HostSend]
