"""Simulators that wait, each in its own time: the numbers of the loop in lockstep, without its waiting."""

from __future__ import annotations

import random
import time

import jax
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.wrappers import TimeLimit
from small import tree_difference
from thorough import thorough

from sherd.algorithms.dqn import DQN
from sherd.algorithms.ppo import PPO
from sherd.envs import describe
from sherd.errors import RunError
from sherd.graph import trace
from sherd.lower import Order, build
from sherd.lower.rows import HostRows
from sherd.policies.single import Single

ENVS, ITERATIONS = 20, 3  # more than one call acts for, and not a multiple of that
PAUSE, ROWS, HORIZON = 0.02, 4, 16


def waits(kind):
    """The environment with steps that take unequally long."""

    class Waiting(kind):
        metadata = {**kind.metadata, "waits": True}

        def step(self, action):
            time.sleep(random.uniform(0, 0.002))
            return super().step(action)

    return Waiting


def waiting_cartpole():
    return TimeLimit(waits(CartPoleEnv)(), 15)


def cartpole():
    return TimeLimit(CartPoleEnv(), 15)


def waiting_pendulum():
    return TimeLimit(waits(PendulumEnv)(), 15)


def pendulum():
    return TimeLimit(PendulumEnv(), 15)


def program_of(algorithm, factory, envs=ENVS):
    graph = trace(algorithm, describe(factory), envs)
    return build(Order(algorithm, factory, graph, Single(), 5, ITERATIONS))


@pytest.mark.parametrize(
    ("algorithm", "waiting", "plain"),
    [
        pytest.param(PPO(horizon=8, epochs=2, minibatches=2), waiting_cartpole, cartpole, marks=thorough),
        (PPO(horizon=8, epochs=2, minibatches=2, network="gru", memory_units=16), waiting_cartpole, cartpole),
        pytest.param(PPO(horizon=8, epochs=2, minibatches=2), waiting_pendulum, pendulum, marks=thorough),
        (DQN(horizon=8, warm_up=100, batch=40, capacity=400), waiting_cartpole, cartpole),
    ],
    ids=["mlp", "memory", "box", "replay"],
)
def test_whoever_comes_first_the_numbers_are_those_of_lockstep(algorithm, waiting, plain):
    programs = [program_of(algorithm, factory) for factory in (waiting, plain)]
    by_rows = [any(isinstance(part, HostRows) for part in program._parts) for program in programs]
    assert by_rows == [True, False]
    summaries = [program.run(ITERATIONS) for program in programs]
    for ours, theirs in zip(*summaries):
        for name in ("episodes", "return_sum", "length_sum"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, err_msg=name)
    assert sum(summary["episodes"] for summary in summaries[0]) > 0
    # On some processors a product's last bit depends on how many rows it has.
    assert tree_difference(*(program.cells["learner"].params for program in programs)) < 1e-5
    states = [jax.tree.map(np.asarray, program.cells["env"]) for program in programs]
    assert tree_difference(*states) < 1e-5
    for program in programs:
        program.close()


class Straggler(CartPoleEnv):
    """Slow in every fourth step, each of four environments in another one."""

    metadata = {**CartPoleEnv.metadata, "waits": True}
    made = 0

    def __init__(self):
        super().__init__()
        self.number, self.turn = Straggler.made % ROWS, 0
        Straggler.made += 1

    def step(self, action):
        self.turn += 1
        if self.turn % ROWS == self.number:
            time.sleep(PAUSE)
        return super().step(action)


def test_a_straggler_holds_up_nobody_else():
    program = program_of(PPO(horizon=HORIZON, epochs=1, minibatches=2), Straggler, ROWS)
    program.run(10)  # compiles, and tries for how many to wait
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        program.run(1)
        took.append(time.perf_counter() - begun)
    program.close()
    # In lockstep somebody is slow in every step of every loop. The fastest: others may use the cores too.
    assert min(took) < 0.75 * HORIZON * PAUSE


class Broken(CartPoleEnv):
    metadata = {**CartPoleEnv.metadata, "waits": True}

    def step(self, action):
        raise ValueError("no answer")


def test_an_error_names_its_environment():
    program = program_of(PPO(horizon=4, epochs=1, minibatches=2), Broken, ROWS)
    with pytest.raises(RunError, match=r"environment [0-3] failed in step: ValueError: no answer"):
        program.run(1)
    program.close()
