"""Tianshou 2, procedural API: run_tianshou.py WORKLOAD vector=dummy|subproc|shmem threads=1"""

from __future__ import annotations

import contextlib
from typing import Any

import common
import workloads

with common.imports("tianshou", __doc__):
    import torch
    from tianshou.algorithm import DQN, PPO, SAC
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, CollectStats, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv
    from tianshou.env.atari.atari_network import DQNet, ScaledObsInputActionReprNet
    from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from torch.distributions import Independent, Normal

VECTORS = {"dummy": DummyVectorEnv, "subproc": SubprocVectorEnv, "shmem": ShmemVectorEnv}
FOR_EVER = 10**9


class EnoughError(Exception):
    """Ends the training: Tianshou asks nobody in between whether to go on."""


def layers(work: workloads.Workload, env: Any, activation: Any, **more: Any) -> Net:
    """An MLP."""
    shape = env.observation_space.shape
    return Net(state_shape=shape, hidden_sizes=list(work.hidden), activation=activation, **more)


def ppo(work: workloads.Workload, env: Any) -> Any:
    """PPO with the workload's networks."""
    actions, tanh = env.action_space, torch.nn.Tanh
    if not hasattr(actions, "n"):
        actor = ContinuousActorProbabilistic(
            preprocess_net=layers(work, env, tanh), action_shape=actions.shape, unbounded=True
        )
        policy = ProbabilisticActorPolicy(
            actor=actor, dist_fn=lambda given: Independent(Normal(*given), 1), action_space=actions
        )
        critic = ContinuousCritic(preprocess_net=layers(work, env, tanh))
    else:
        if work.env.startswith("ALE/"):
            shape = env.observation_space.shape
            nature = DQNet(*shape, action_shape=actions.n, features_only=True, output_dim_added_layer=512)
            bodies = [ScaledObsInputActionReprNet(nature)] * 2
        else:
            bodies = [layers(work, env, tanh) for _ in range(2)]
        actor = DiscreteActor(preprocess_net=bodies[0], action_shape=actions.n, softmax_output=False)
        policy = DiscreteActorPolicy(actor=actor, action_space=actions)
        critic = DiscreteCritic(preprocess_net=bodies[1])
    return PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=workloads.LEARNING_RATE),
        eps_clip=workloads.CLIP,
        vf_coef=workloads.VALUE_COST,
        ent_coef=workloads.ENTROPY_COST,
        max_grad_norm=workloads.MAX_GRAD_NORM,
        gae_lambda=workloads.GAE_LAMBDA,
        gamma=workloads.DISCOUNT,
        max_batchsize=work.minibatch,
    )


def dqn(work: workloads.Workload, env: Any) -> Any:
    """DQN with the workload's network."""
    network = layers(work, env, torch.nn.ReLU, action_shape=env.action_space.n)
    policy = DiscreteQLearningPolicy(
        model=network, action_space=env.action_space, eps_training=workloads.EPSILON
    )
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=workloads.DISCOUNT,
        target_update_freq=workloads.SYNC,
        is_double=False,
    )


def sac(work: workloads.Workload, env: Any) -> Any:
    """SAC with the workload's networks."""
    actions, relu, adam = env.action_space, torch.nn.ReLU, AdamOptimizerFactory(lr=3e-4)
    actor = ContinuousActorProbabilistic(
        preprocess_net=layers(work, env, relu),
        action_shape=actions.shape,
        unbounded=True,
        conditioned_sigma=True,
    )
    joined = {"action_shape": actions.shape, "concat": True}
    critics = [ContinuousCritic(preprocess_net=layers(work, env, relu, **joined)) for _ in range(2)]
    return SAC(
        policy=SACPolicy(actor=actor, action_space=actions),
        policy_optim=adam,
        critic=critics[0],
        critic_optim=adam,
        critic2=critics[1],
        critic2_optim=adam,
        tau=workloads.TAU,
        gamma=workloads.DISCOUNT,
        alpha=AutoAlpha(-float(actions.shape[0]), 0.0, adam),
    )


def main() -> None:
    """Measure one workload."""
    task = common.Task("tianshou", "tianshou", __doc__)
    work = task.workload
    torch.set_num_threads(task.number("threads", 1))
    algorithm = {"ppo": ppo, "dqn": dqn, "sac": sac}[work.algorithm](work, common.make_env(work.env))
    envs = VECTORS[task.get("vector", "dummy")](common.makers(work))
    capacity = work.steps if work.algorithm == "ppo" else workloads.CAPACITY
    collector = Collector[CollectStats](algorithm, envs, VectorReplayBuffer(capacity, work.envs))

    def mark(epoch: int, steps: int) -> None:  # called before each training step
        if steps and task.meter.mark(steps):
            raise EnoughError

    shared = {
        "training_collector": collector,
        "test_collector": None,
        "max_epochs": 1,
        "epoch_num_steps": FOR_EVER,
        "collection_step_num_env_steps": work.steps,
        "batch_size": work.minibatch,
        "training_fn": mark,
        "verbose": False,
        "show_progress": False,
    }
    if work.algorithm == "ppo":
        params: Any = OnPolicyTrainerParams(update_step_num_repetitions=work.epochs, **shared)
    else:
        collector.reset()
        collector.collect(n_step=workloads.WARM_UP, random=True)
        per_sample = work.updates / work.steps
        params = OffPolicyTrainerParams(update_step_num_gradient_steps_per_sample=per_sample, **shared)
    with contextlib.suppress(EnoughError):
        algorithm.run_training(params)
    task.report()
    envs.close()


if __name__ == "__main__":
    main()
