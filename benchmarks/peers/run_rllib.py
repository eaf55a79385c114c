"""RLlib's PPO, new API stack: run_rllib.py WORKLOAD runners=0|2 threads=1

runners=0: the environments are stepped in the process that learns.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import common
import workloads

FOLDERS = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]


def make(config: Any) -> Any:
    """One environment; Pong with RLlib's own wrapper, whose layout its networks expect."""
    sys.path[:0] = [folder for folder in FOLDERS if folder not in sys.path]  # in Ray's workers
    if not config["name"].startswith("ALE/"):
        return common.make_env(config["name"])
    import ale_py
    import gymnasium as gym
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack

    gym.register_envs(ale_py)
    game = gym.make(config["name"], frameskip=1, repeat_action_probability=0.25)
    return wrap_atari_for_new_api_stack(game, dim=84, framestack=4)


def build(task: common.Task) -> Any:
    """The algorithm."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    work, runners = task.workload, task.number("runners", 0)
    if work.env.startswith("ALE/"):
        network = DefaultModelConfig(
            conv_filters=[[32, 8, 4], [64, 4, 2], [64, 3, 1]],
            conv_activation="relu",
            head_fcnet_hiddens=[512],
            head_fcnet_activation="relu",
            vf_share_layers=True,
        )
    else:
        hidden = list(work.hidden)
        network = DefaultModelConfig(fcnet_hiddens=hidden, fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("measured", env_config={"name": work.env})
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=work.envs // max(1, runners),
            rollout_fragment_length=work.horizon,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0)
        .rl_module(model_config=network)
        .training(
            lr=workloads.LEARNING_RATE,
            gamma=workloads.DISCOUNT,
            lambda_=workloads.GAE_LAMBDA,
            clip_param=workloads.CLIP,
            entropy_coeff=workloads.ENTROPY_COST,
            vf_loss_coeff=workloads.VALUE_COST,
            grad_clip=workloads.MAX_GRAD_NORM,
            use_kl_loss=False,
            num_epochs=work.epochs,
            minibatch_size=work.minibatch,
            train_batch_size_per_learner=work.steps,
        )
        .reporting(min_time_s_per_iteration=None)
    )
    return config.build_algo()


def main() -> None:
    """Measure one workload."""
    task = common.Task("rllib", "ray", __doc__)
    threads, runners = task.number("threads", 1), task.number("runners", 0)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(FOLDERS)
    import ray
    import torch
    from ray.tune.registry import register_env

    torch.set_num_threads(threads)
    ray.init(address="local", num_cpus=max(2, runners + 1), include_dashboard=False, log_to_driver=False)
    register_env("measured", make)
    algorithm = build(task)
    while True:
        result = algorithm.train()
        if task.meter.mark(int(result["env_runners"]["num_env_steps_sampled_lifetime"])):
            break
    task.report()
    shutil.rmtree(algorithm.logdir, ignore_errors=True)  # RLlib makes it in the home folder
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
