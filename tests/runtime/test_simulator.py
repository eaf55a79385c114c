"""The simulator process: the same steps as in one process, by groups, and a successor that carries on."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
import stand_in

from sherd.envs import make_host
from sherd.runtime import simulator
from sherd.runtime.shared import Closed, Field
from sherd.runtime.simulator import Outlet, Simulation, Source
from sherd.runtime.streams import StreamSpec, build_streams
from sherd.spaces import step_buffers

TRIPS, ITERATIONS, GROUPS, ROWS = 5, 2, 2, 3
OBS, REWARD, TRUNCATED = (("after", ("obs",)), ("transition", ("reward",)), ("transition", ("truncated",)))


def simulations(streams):
    """Two groups of three CartPoles; rewards and truncations go to one rollout of all six."""
    return tuple(
        Simulation(
            "CartPole-v1",
            7,
            group * ROWS,
            ROWS,
            TRIPS,
            ITERATIONS,
            streams[f"actions{group}"],
            ((),),
            (Outlet(streams[f"obs{group}"], 0, (Source(*OBS),)),),
            (Outlet(streams["rollout"], group, (Source(*REWARD), Source(*TRUNCATED))),),
        )
        for group in range(GROUPS)
    )


@pytest.fixture
def streams():
    whole = GROUPS * ROWS
    specs = [
        StreamSpec(
            "rollout",
            (Field((TRIPS, whole), "float32", 1), Field((TRIPS, whole), "bool", 1)),
            tuple((g * ROWS, (g + 1) * ROWS) for g in range(GROUPS)),
        )
    ]
    for group in range(GROUPS):
        specs.append(StreamSpec(f"actions{group}", (Field((ROWS,), "int32", 0),), ((0, ROWS),)))
        specs.append(StreamSpec(f"obs{group}", (Field((ROWS, 4), "float32", 0),), ((0, ROWS),)))
    arena, built = build_streams(specs, {"here": [f"actions{g}" for g in range(GROUPS)]})
    yield built
    arena.unlink()


class Policy:
    """Sends actions and reads observations, as an acting fragment does."""

    def __init__(self, streams):
        self.actions = [streams[f"actions{g}"].writer(0, lambda: None) for g in range(GROUPS)]
        self.obs = [streams[f"obs{g}"].reader(lambda: None) for g in range(GROUPS)]

    def look(self, group):
        seen = self.obs[group].take()[0].copy()
        self.obs[group].release()
        return seen

    def act(self, group, actions):
        self.actions[group].slot()[0][:] = actions
        self.actions[group].publish()


def action(step):
    return np.arange(step, step + GROUPS * ROWS, dtype=np.int32) % 2


def reference():
    """The six environments in one process: observations of every step, and rewards."""
    env = make_host("CartPole-v1", GROUPS * ROWS, 7)
    out = step_buffers(env.spec, env.num_envs)
    env.reset(out.obs)
    seen, rewards = [out.obs.copy()], []
    for step in range(TRIPS * ITERATIONS):
        env.step(action(step), out)
        seen.append(out.obs.copy())
        rewards.append(out.reward.copy())
    return np.array(seen), np.array(rewards)


def test_groups_make_the_steps_of_the_whole_in_any_order(streams):
    context, policy = stand_in.context(), Policy(streams)
    worker = threading.Thread(target=simulator.run, args=(simulations(streams), context))
    worker.start()
    seen, rewards = reference()
    reader = streams["rollout"].reader(lambda: None)
    for iteration in range(ITERATIONS):
        for group in (1, 0):  # one group is a whole rollout ahead of the other
            rows = slice(group * ROWS, (group + 1) * ROWS)
            for step in range(iteration * TRIPS, (iteration + 1) * TRIPS):
                np.testing.assert_array_equal(policy.look(group), seen[step][rows])
                policy.act(group, action(step)[rows])
        found = reader.take()[0]
        np.testing.assert_array_equal(found, rewards[iteration * TRIPS : (iteration + 1) * TRIPS])
        reader.release()
    worker.join(5)
    assert not worker.is_alive()
    told = [message for message in context.said if message[0] == "episodes"]
    assert sorted(number for _, number, *_ in told) == [0, 0, 1, 1]
    stand_in.free(context)


def test_a_successor_answers_for_the_lost_step_and_keeps_what_was_done(streams):
    first, policy = stand_in.context(), Policy(streams)
    first.watch = _closes_when(lambda: streams["obs0"].counts().published == 3)
    _, rewards = reference()
    worker = threading.Thread(target=_until_closed, args=(simulations(streams), first))
    worker.start()
    for step in range(2):
        for group in range(GROUPS):
            policy.look(group)
            policy.act(group, action(step)[group * ROWS : (group + 1) * ROWS])
    worker.join(5)  # it "dies" with the observation of step 2 sent, and nothing after
    assert not worker.is_alive()
    second = stand_in.context(attempt=1)
    worker = threading.Thread(target=simulator.run, args=(simulations(streams), second))
    worker.start()
    for step in range(2, TRIPS * ITERATIONS):
        for group in range(GROUPS):
            policy.look(group)
            policy.act(group, action(step)[group * ROWS : (group + 1) * ROWS])
        if step == TRIPS - 1:
            reward, truncated = streams["rollout"].reader(lambda: None).take()
            np.testing.assert_array_equal(reward[:2], rewards[:2])  # what the first one did is not lost
            np.testing.assert_array_equal(reward[2], 0.0)
            assert truncated[2].all()
            assert not truncated[:2].any()
            assert not truncated[3:].any()
    worker.join(5)
    assert not worker.is_alive()
    for one in (first, second):
        stand_in.free(one)


def _closes_when(condition):
    def watch():
        if condition():
            raise Closed

    return watch


def _until_closed(payload, context):
    try:
        simulator.run(payload, context)
    except Closed:
        return


def test_a_simulator_process_never_loads_jax():
    code = "import sys, sherd.runtime.simulator; sys.exit(any(m.split('.')[0] == 'jax' for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
