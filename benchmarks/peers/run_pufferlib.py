"""PufferLib's PuffeRL: run_pufferlib.py WORKLOAD vector=serial|processes [workers=2] threads=1

On Gymnasium's environments: its own games in C are others than its peers have.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from typing import Any

import common
import workloads

with common.imports("pufferlib", __doc__):
    import numpy as np
    import pufferlib.emulation
    import pufferlib.pufferl as pufferl
    import pufferlib.vector
    import torch
    from torch import nn

pufferl.ADVANTAGE_CUDA = False


class Policy(nn.Module):
    """Separate networks for policy and value, or one Nature CNN for both."""

    def __init__(self, env: Any, work: workloads.Workload) -> None:
        super().__init__()
        actions = env.single_action_space
        self.continuous, self.image = not hasattr(actions, "n"), work.env.startswith("ALE/")
        outputs = actions.shape[0] if self.continuous else actions.n
        if self.image:
            self.body = nn.Sequential(
                *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
                *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
            )
            self.policy, self.value = nn.Linear(512, outputs), nn.Linear(512, 1)
        else:
            inputs = int(np.prod(env.single_observation_space.shape))
            self.policy, self.value = (_layers([inputs, *work.hidden, out]) for out in (outputs, 1))
        if self.continuous:
            self.log_std = nn.Parameter(torch.zeros(1, outputs))

    def forward(self, observation: Any, state: Any = None) -> Any:
        """Logits or a normal distribution, and the value."""
        x = self.body(observation.float() / 255) if self.image else observation.float()
        out = self.policy(x)
        if self.continuous:
            out = torch.distributions.Normal(out, self.log_std.exp().expand_as(out))
        return out, self.value(x)

    forward_eval = forward


def _layers(widths: list[int]) -> nn.Module:
    pairs = itertools.pairwise(widths)
    layers = [part for before, after in pairs for part in (nn.Linear(before, after), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


class Trainer(pufferl.PuffeRL):
    """Without the picture on the terminal."""

    def print_dashboard(self, *given: Any, **named: Any) -> None:
        """Nothing."""


def make(name: str, buf: Any = None, seed: int = 0) -> Any:
    """One environment."""
    return pufferlib.emulation.GymnasiumPufferEnv(env=common.make_env(name), buf=buf, seed=seed)


def settings(work: workloads.Workload) -> dict[str, Any]:
    """The workload in PufferLib's words."""
    return {
        "env": work.env,
        "name": "measured",
        "project": "measured",
        "seed": 1,
        "device": "cpu",
        "torch_deterministic": True,
        "cpu_offload": False,
        "precision": "float32",
        "use_rnn": False,
        "optimizer": "adam",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "anneal_lr": False,
        "learning_rate": workloads.LEARNING_RATE,
        "total_timesteps": 10**9,
        "gamma": workloads.DISCOUNT,
        "gae_lambda": workloads.GAE_LAMBDA,
        "clip_coef": workloads.CLIP,
        "vf_coef": workloads.VALUE_COST,
        "vf_clip_coef": 10.0,
        "ent_coef": workloads.ENTROPY_COST,
        "max_grad_norm": workloads.MAX_GRAD_NORM,
        "update_epochs": work.epochs,
        "batch_size": work.steps,
        "minibatch_size": work.minibatch,
        "max_minibatch_size": work.minibatch,
        "bptt_horizon": work.horizon,
        "data_dir": tempfile.mkdtemp(),
        "checkpoint_interval": 10**9,
        "compile": False,
        "compile_mode": "default",
        "compile_fullgraph": True,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.0,
        "prio_beta0": 1.0,
    }


def main() -> None:
    """Measure one workload."""
    task = common.Task("pufferlib", "pufferlib", __doc__)
    work = task.workload
    torch.set_num_threads(task.number("threads", 1))
    shared = {"env_kwargs": {"name": work.env}, "num_envs": work.envs}
    if task.get("vector", "serial") == "serial":
        env = pufferlib.vector.make(make, backend=pufferlib.vector.Serial, **shared)
    else:
        shared |= {"num_workers": task.number("workers", 2), "overwork": True}
        env = pufferlib.vector.make(make, backend=pufferlib.vector.Multiprocessing, **shared)
    trainer = Trainer(settings(work), env, Policy(env, work))
    while True:
        trainer.evaluate()
        trainer.train()
        if task.meter.mark(trainer.global_step):
            break
    task.report()
    env.close()
    os._exit(0)  # its monitoring thread does not end by itself


if __name__ == "__main__":
    main()
