"""What a loop may do with the stand-ins that tracing gives it."""

from __future__ import annotations

from dataclasses import dataclass

from small import Reinforce

import sherd
from sherd import learn
from sherd.envs import describe


@dataclass(frozen=True)
class Reporter(Reinforce):
    """Reports a dict that a stage returned, as a whole."""

    @learn
    def numbers(self, rollout):
        return {"largest": rollout.reward.max(), "smallest": rollout.reward.min()}

    def loop(self, env, learner):
        super().loop(env, learner)
        learner.report(self.numbers(env.rollout))


def test_a_dict_that_a_stage_returned_can_be_reported():
    graph = sherd.check(sherd.trace(Reporter(), describe("CartPole-v1"), 2))
    told = [graph.values[stack.outer].type for stack in graph.reports if stack.channel == "metrics"]
    assert {"largest", "smallest"} in [set(one) for one in told]
