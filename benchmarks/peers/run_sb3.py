"""Stable-Baselines3: run_sb3.py WORKLOAD vector=dummy|subproc threads=1

run_sbx.py is the same with SBX, its port to JAX.
"""

from __future__ import annotations

from typing import Any

import common
import workloads

with common.imports("sb3", __doc__):
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

FOR_EVER = 10**9


class Marks(BaseCallback):
    """A rollout begins where the iteration before it ended; the first one that learnt is the first mark."""

    def __init__(self, meter: common.Meter, begin: int) -> None:
        super().__init__()
        self.meter, self.begin, self.enough = meter, begin, False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > self.begin:
            self.enough = self.enough or self.meter.mark(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.enough


def build(library: Any, task: common.Task, tanh: Any, relu: Any) -> Any:
    """The model, of Stable-Baselines3 or of a library with the same classes."""
    work = task.workload
    vector = DummyVecEnv if task.get("vector", "dummy") == "dummy" else SubprocVecEnv
    env = vector(common.makers(work))
    shared = {"device": "cpu", "seed": 1, "gamma": workloads.DISCOUNT}
    hidden = list(work.hidden)
    if work.algorithm == "ppo":
        image = work.env.startswith("ALE/")
        network = {"net_arch": {"pi": hidden, "vf": hidden}, "activation_fn": tanh}
        return library.PPO(
            "CnnPolicy" if image else "MlpPolicy",
            env,
            learning_rate=workloads.LEARNING_RATE,
            n_steps=work.horizon,
            batch_size=work.minibatch,
            n_epochs=work.epochs,
            gae_lambda=workloads.GAE_LAMBDA,
            clip_range=workloads.CLIP,
            ent_coef=workloads.ENTROPY_COST,
            vf_coef=workloads.VALUE_COST,
            max_grad_norm=workloads.MAX_GRAD_NORM,
            policy_kwargs={} if image else network,
            **shared,
        )
    shared |= {
        "buffer_size": workloads.CAPACITY,
        "learning_starts": workloads.WARM_UP,
        "batch_size": work.minibatch,
        "train_freq": work.horizon,
        "gradient_steps": work.updates,
        "policy_kwargs": {"net_arch": hidden, "activation_fn": relu},
    }
    if work.algorithm == "sac":
        return library.SAC("MlpPolicy", env, tau=workloads.TAU, **shared)
    return library.DQN(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        tau=1.0,
        exploration_initial_eps=workloads.EPSILON,
        exploration_final_eps=workloads.EPSILON,
        # Counted in steps of the environments, of which each update follows four.
        target_update_interval=workloads.SYNC * work.steps // work.updates,
        **shared,
    )


def measure(task: common.Task, model: Any) -> None:
    """Train until enough was measured."""
    begin = 0 if task.workload.algorithm == "ppo" else workloads.WARM_UP
    model.learn(FOR_EVER, callback=Marks(task.meter, begin))
    task.report()
    model.get_env().close()


def main() -> None:
    """Measure one workload."""
    import stable_baselines3

    task = common.Task("sb3", "stable-baselines3", __doc__)
    torch.set_num_threads(task.number("threads", 1))
    measure(task, build(stable_baselines3, task, torch.nn.Tanh, torch.nn.ReLU))


if __name__ == "__main__":
    main()
