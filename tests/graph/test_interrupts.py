"""Ctrl-C while a loop is traced is neither lost nor taken for a mistake of the author's."""

import contextlib
import signal
from dataclasses import dataclass

import pytest
from small import Reinforce

import sherd
from sherd import learn
from sherd.envs import describe


@dataclass(frozen=True)
class Interrupted(Reinforce):
    """Does with a KeyboardInterrupt what JAX may do with it."""

    swallows: bool = True

    @learn
    def numbers(self, rollout):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if not self.swallows:
            raise TypeError("of traced values that were let go in the middle")
        return rollout.reward.max()

    def loop(self, env, learner):
        super().loop(env, learner)
        learner.report({"largest": self.numbers(env.rollout)})


@pytest.mark.parametrize("swallows", [True, False])
def test_ctrl_c_while_tracing_is_kept(swallows):
    with pytest.raises(KeyboardInterrupt):
        sherd.trace(Interrupted(swallows=swallows), describe("CartPole-v1"), 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
