"""Simulators that wait, stepped in threads: the same numbers, in the time of one."""

from __future__ import annotations

import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

from sherd.envs import make_host
from sherd.envs.host.threads import Threads
from sherd.errors import RunError
from sherd.spaces import step_buffers

ROWS = 6


class Waiting(CartPoleEnv):
    metadata = {**CartPoleEnv.metadata, "waits": True}
    pause = 0.0

    def step(self, action):
        time.sleep(self.pause)
        return super().step(action)


class Slow(Waiting):
    pause = 0.05


class Broken(Waiting):
    def step(self, action):
        if action == 1:
            raise ValueError("no answer")
        return super().step(action)


def waiting():
    return TimeLimit(Waiting(), 15)


def plain():
    return TimeLimit(CartPoleEnv(), 15)


def threads_of_rows():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sherd-row")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = len(threads_of_rows())
    yield
    assert len(threads_of_rows()) == before


def test_the_numbers_are_those_of_stepping_one_after_the_other():
    batches = [make_host(factory, ROWS, seed=3, first_index=2) for factory in (waiting, plain)]
    outs = [step_buffers(batch.spec, ROWS) for batch in batches]
    for batch, out in zip(batches, outs):
        batch.reset(out.obs)
    ended = 0
    for action in np.random.default_rng(0).integers(0, 2, (100, ROWS), dtype=np.int32):
        for batch, out in zip(batches, outs):
            batch.step(action, out)
        for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(outs[0], name), getattr(outs[1], name), name)
        ended += int((outs[0].terminated | outs[0].truncated).sum())
    assert ended > ROWS  # both an end and a reset were compared
    for batch in batches:
        batch.close()


def test_all_rows_wait_at_once():
    batch = make_host(Slow, ROWS, seed=0)
    out = step_buffers(batch.spec, ROWS)
    batch.reset(out.obs)
    begun = time.perf_counter()
    for _ in range(4):
        batch.step(np.zeros(ROWS, np.int32), out)
    took = time.perf_counter() - begun
    batch.close()
    assert 4 * Slow.pause <= took < 4 * Slow.pause * ROWS / 2


def test_an_error_names_its_row_and_the_rest_goes_on():
    batch = make_host(Broken, ROWS, seed=0, first_index=10)
    out = step_buffers(batch.spec, ROWS)
    batch.reset(out.obs)
    with pytest.raises(RunError, match="environment 13 failed in step: ValueError: no answer"):
        batch.step(np.array([0, 0, 0, 1, 0, 1], np.int32), out)
    batch.step(np.zeros(ROWS, np.int32), out)
    batch.close()


def test_simulators_that_never_answer_hold_up_the_end_for_a_second_at_most():
    answer, asked, threads = threading.Event(), threading.Barrier(5), Threads(4)

    def never(row: int) -> None:
        asked.wait(10)
        answer.wait(30)

    asking = threading.Thread(target=threads.each, args=(never,), daemon=True)
    asking.start()
    asked.wait(10)
    begun = time.perf_counter()
    threads.close()
    took = time.perf_counter() - begun
    asking.join(10)
    assert not asking.is_alive()  # whoever waited for them does so no longer
    answer.set()
    for thread in threads_of_rows():
        thread.join(10)
    assert took < 3  # a second for each would be four


def test_one_row_needs_no_thread():
    batch = make_host(Waiting, 1, seed=0)
    assert not threads_of_rows()
    batch.close()


def test_a_registered_environment_says_it_through_its_wrappers():
    gymnasium.register("Waiting-v0", Waiting, max_episode_steps=9)
    batch = make_host("Waiting-v0", ROWS, seed=0)
    assert len(threads_of_rows()) == ROWS
    batch.close()


def test_rows_can_be_stepped_each_in_its_own_time():
    batches = [make_host(factory, ROWS, seed=3) for factory in (waiting, plain)]
    outs = [step_buffers(batch.spec, ROWS) for batch in batches]
    for batch, out in zip(batches, outs):
        batch.reset(out.obs)
    action, back = np.array([0, 1, 0, 1, 0, 1], np.int32), []
    batches[0].start([4, 1], action[[4, 1]], [outs[0]] * 2)
    batches[0].start([0, 2, 3, 5], action[[0, 2, 3, 5]], [outs[0]] * 4)
    while len(back) < ROWS:
        back += batches[0].finished(1)
    assert sorted(back) == list(range(ROWS))
    batches[1].step(action, outs[1])
    for name in ("obs", "next_obs", "reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(outs[0], name), getattr(outs[1], name), name)
    for batch in batches:
        batch.close()
