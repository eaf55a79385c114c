"""Sherd: run_sherd.py WORKLOAD policy=NAME [actors=2] [learners=2] [devices=2] [asynchronous=1]

The words after the policy's name are its fields. Through the public API: an algorithm, an environment, a
policy, and a sink that counts and, when enough was measured, asks the run to end as Ctrl-C does.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import common
import workloads

with common.imports("sherd", __doc__):
    import sherd
    from sherd.algorithms import load_algorithm
    from sherd.policies import load_policy
    from sherd.runtime.jax_settings import use_devices

FOR_EVER = 10**9


class Count:
    """A sink that marks every iteration."""

    def __init__(self, meter: common.Meter) -> None:
        self.meter, self.ended = meter, False

    def iteration(self, row: dict[str, float]) -> None:
        """Mark; end the run once."""
        if self.meter.mark(row["steps"]) and not self.ended:
            self.ended = True
            os.kill(os.getpid(), signal.SIGINT)

    def start(self, info: Any) -> None: ...
    def note(self, text: str) -> None: ...
    def fragments(self, statuses: Any) -> None: ...
    def finish(self, summary: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class CountAfterWarmUp(Count):
    """The same where a replay memory is filled first: iterations without an update do not count."""

    def iteration(self, row: dict[str, float]) -> None:
        """Mark what was learnt from."""
        if row["steps"] > workloads.WARM_UP:
            super().iteration(row)


def algorithm(workload: workloads.Workload) -> Any:
    """The workload's algorithm, without what its peers do not do either."""
    fields: dict[str, Any] = {"horizon": workload.horizon, "hidden": workload.hidden}
    if workload.algorithm == "ppo":
        fields |= {
            "epochs": workload.epochs,
            "minibatches": workload.minibatches,
            "learning_rate": workloads.LEARNING_RATE,
            "anneal": False,
            "discount": workloads.DISCOUNT,
            "gae_lambda": workloads.GAE_LAMBDA,
            "clip": workloads.CLIP,
            "value_cost": workloads.VALUE_COST,
            "entropy_cost": workloads.ENTROPY_COST,
            "max_grad_norm": workloads.MAX_GRAD_NORM,
            "normalise_rewards": False,
        }
    else:
        fields |= {
            "batch": workload.minibatch,
            "updates": workload.updates,
            "capacity": workloads.CAPACITY,
            "warm_up": workloads.WARM_UP,
            "discount": workloads.DISCOUNT,
        }
    if workload.algorithm == "dqn":
        fields |= {
            "n_step": 1,
            "double": False,
            "anneal": False,
            "sync": workloads.SYNC,
            "epsilon_start": workloads.EPSILON,
            "epsilon_end": workloads.EPSILON,
        }
    return load_algorithm(workload.algorithm)(**fields)


def train(task: common.Task, env: Any, policy: Any) -> None:
    """Train until enough was measured."""
    replay = task.workload.algorithm in ("dqn", "sac")
    sink = (CountAfterWarmUp if replay else Count)(task.meter)
    if getattr(policy, "devices", 0) > 1:
        use_devices(policy.devices)
    sherd.train(
        algorithm(task.workload),
        env,
        policy=policy,
        sinks=[sink],
        steps=FOR_EVER,
        envs=task.workload.envs,
        seed=1,
        eval_episodes=0,
    )


def main() -> None:
    """Measure one workload."""
    task = common.Task("sherd", "sherd", __doc__)
    fields = {key: int(value) for key, value in task.setting.items() if key != "policy"}
    if "asynchronous" in fields:
        fields["asynchronous"] = bool(fields["asynchronous"])
    train(task, task.workload.env, load_policy(task.get("policy", "Single"))(**fields))
    task.report()


if __name__ == "__main__":
    main()
