"""RLlib's PPO, DQN and SAC, new API stack: run_rllib.py WORKLOAD runners=0|2 threads=1

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


def shared(task: common.Task, config: Any) -> Any:
    """The configuration of an algorithm, with what is the same for all of them."""
    work, runners = task.workload, task.number("runners", 0)
    return (
        config.environment("measured", env_config={"name": work.env})
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=work.envs // max(1, runners),
            rollout_fragment_length=work.horizon,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0)
        .reporting(min_time_s_per_iteration=None)
    )


def ppo(task: common.Task) -> Any:
    """PPO with the workload's networks."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    work = task.workload
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
    return (
        shared(task, PPOConfig())
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
    )


def replay(task: common.Task, config: Any) -> Any:
    """DQN's and SAC's configuration, with what is the same for both."""
    work, runners = task.workload, task.number("runners", 0)
    # RLlib is told how many samples to replay for each new one, and makes so many updates after a rollout:
    # that number, divided by batch size over new samples, which is `updates`. It counts one runner too many.
    fresh = work.horizon * (work.envs // max(1, runners)) * (runners + 1)
    return (
        shared(task, config)
        # What it sums up after an iteration is no part of the work: one takes half a second or more.
        .reporting(min_time_s_per_iteration=0.5, min_sample_timesteps_per_iteration=work.steps)
        .training(
            gamma=workloads.DISCOUNT,
            train_batch_size_per_learner=work.minibatch,
            training_intensity=work.updates * work.minibatch / fresh,
            num_steps_sampled_before_learning_starts=workloads.WARM_UP,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": workloads.CAPACITY},
            grad_clip=None,
            n_step=1,
        )
    )


def dqn(task: common.Task) -> Any:
    """DQN with the workload's network."""
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    work = task.workload
    network = DefaultModelConfig(fcnet_hiddens=list(work.hidden), fcnet_activation="relu")
    return (
        replay(task, DQNConfig())
        .rl_module(model_config=network)
        .training(
            lr=1e-3,
            double_q=False,
            dueling=False,
            epsilon=workloads.EPSILON,
            # Counted in steps of the environments, of which each update follows four.
            target_network_update_freq=workloads.SYNC * work.steps // work.updates,
        )
    )


def sac(task: common.Task) -> Any:
    """SAC with the workload's networks."""
    import torch
    from ray.rllib.algorithms.sac import SACConfig
    from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.models.configs import MLPEncoderConfig
    from ray.rllib.core.models.torch.encoder import TorchMLPEncoder
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    hidden = list(task.workload.hidden)

    class Joined(TorchMLPEncoder):
        """Observation and action as one input."""

        def _forward(self, inputs: Any, **more: Any) -> Any:
            joined = torch.cat([inputs[Columns.OBS], inputs[Columns.ACTIONS]], -1)
            return super()._forward({Columns.OBS: joined}, **more)

    class Catalog(SACCatalog):
        """RLlib's critics encode observation and action apart, then join them: seven layers, not two."""

        def build_qf_encoder(self, framework: str) -> Any:
            return Joined(
                MLPEncoderConfig(
                    input_dims=[self.observation_space.shape[0] + self.action_space.shape[0]],
                    hidden_layer_dims=hidden[:-1],
                    hidden_layer_activation="relu",
                    output_layer_dim=hidden[-1],
                    output_layer_activation="relu",
                )
            )

    network = DefaultModelConfig(fcnet_hiddens=hidden, fcnet_activation="relu")
    return (
        replay(task, SACConfig())
        .rl_module(rl_module_spec=RLModuleSpec(catalog_class=Catalog, model_config=network))
        # Without a frequency the target networks follow every update.
        .training(tau=workloads.TAU, twin_q=True, target_network_update_freq=0)
        .training(actor_lr=3e-4, critic_lr=3e-4, alpha_lr=3e-4)
    )


def learnt_from(work: workloads.Workload, result: Any) -> int:
    """Environment steps, from what an iteration reports.

    Of DQN and SAC those that the updates stand for. A rollout has a few more wherever episodes ended in it:
    resets take a step of the vector environment but do not count, so RLlib goes on until it has enough, with
    all environments. CartPole in its beginning makes 36 steps where 32 are asked for.
    """
    if work.algorithm == "ppo":
        return int(result["env_runners"]["num_env_steps_sampled_lifetime"])
    module = result.get("learners", {}).get("default_policy", {})  # not there while it warms up
    updates = int(module.get("num_module_steps_trained_lifetime", 0)) // work.minibatch
    return updates * work.steps // work.updates


def main() -> None:
    """Measure one workload."""
    task = common.Task("rllib", "ray", __doc__)
    threads, runners = task.number("threads", 1), task.number("runners", 0)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(FOLDERS)
    with common.imports("rllib", __doc__):
        import ray
        import torch
        from ray.tune.registry import register_env

    torch.set_num_threads(threads)
    ray.init(address="local", num_cpus=max(2, runners + 1), include_dashboard=False, log_to_driver=False)
    register_env("measured", make)
    config = {"ppo": ppo, "dqn": dqn, "sac": sac}[task.workload.algorithm](task)
    algorithm = config.build_algo()
    while True:
        steps = learnt_from(task.workload, algorithm.train())
        if steps and task.meter.mark(steps):
            break
    task.report()
    shutil.rmtree(algorithm.logdir, ignore_errors=True)  # RLlib makes it in the home folder
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
