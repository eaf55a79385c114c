"""TorchRL's PPO, DQN and SAC: run_torchrl.py WORKLOAD vector=gymnasium|serial|parallel threads=1

gymnasium: one vector environment of Gymnasium under TorchRL's wrapper; serial, parallel: TorchRL's own.
compile=1, of DQN and SAC: the update goes through torch.compile, which takes up to half a minute to begin.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import common
import workloads

with common.imports("torchrl", __doc__):
    import torch
    from tensordict.nn import NormalParamExtractor, TensorDictModule, TensorDictSequential
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
    from torchrl.envs import DoubleToFloat, GymWrapper, ParallelEnv, SerialEnv, TransformedEnv
    from torchrl.modules import (
        MLP,
        ActorValueOperator,
        ConvNet,
        EGreedyModule,
        IndependentNormal,
        ProbabilisticActor,
        QValueActor,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives import ClipPPOLoss, DQNLoss, HardUpdate, SACLoss, SoftUpdate
    from torchrl.objectives.value import GAE

warnings.filterwarnings("ignore")


class Scale(nn.Module):
    """Pixels from 0 to 1."""

    def forward(self, pixels: Any) -> Any:
        """Scaled."""
        return pixels.float() / 255


class NormalHead(nn.Module):
    """The mean from the layers below, and one free log-deviation for each action."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(actions))

    def forward(self, mean: Any) -> Any:
        """Mean and deviation."""
        return mean, self.log_std.exp().expand_as(mean)


def layers(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """An MLP with tanh."""
    widths, parts = [inputs, *hidden], []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*parts, nn.Linear(widths[-1], outputs))


def make_envs(task: common.Task) -> Any:
    """The environments as one."""
    work, kind = task.workload, task.get("vector", "gymnasium")
    if kind == "gymnasium":
        import gymnasium as gym

        mode = gym.vector.AutoresetMode.SAME_STEP
        vector = gym.vector.SyncVectorEnv(common.makers(work), autoreset_mode=mode)
        env = GymWrapper(vector, categorical_action_encoding=True)
    else:

        def one() -> Any:
            return GymWrapper(common.make_env(work.env), categorical_action_encoding=True)

        env = (ParallelEnv if kind == "parallel" else SerialEnv)(work.envs, one)
    env = TransformedEnv(env)
    if work.env.startswith("HalfCheetah"):
        env.append_transform(DoubleToFloat(in_keys=["observation"]))
    return env


def networks(work: workloads.Workload, env: Any) -> tuple[Any, Any]:
    """Actor and critic."""
    space = common.make_env(work.env).action_space
    categorical = {"distribution_class": torch.distributions.Categorical, "in_keys": ["logits"]}
    if work.env.startswith("ALE/"):
        convolutions = ConvNet(
            in_features=4,
            num_cells=[32, 64, 64],
            kernel_sizes=[8, 4, 3],
            strides=[4, 2, 1],
            activation_class=nn.ReLU,
        )
        body = nn.Sequential(Scale(), convolutions, nn.Linear(3136, 512), nn.ReLU())
        seen = "pixels" if "pixels" in env.observation_spec else "observation"
        both = ActorValueOperator(
            TensorDictModule(body, in_keys=[seen], out_keys=["common"]),
            ProbabilisticActor(
                TensorDictModule(nn.Linear(512, int(space.n)), in_keys=["common"], out_keys=["logits"]),
                return_log_prob=True,
                **categorical,
            ),
            ValueOperator(nn.Linear(512, 1), in_keys=["common"]),
        )
        return both.get_policy_operator(), both.get_value_operator()
    inputs, seen = env.observation_spec["observation"].shape[-1], {"in_keys": ["observation"]}
    if hasattr(space, "n"):
        head = TensorDictModule(layers(inputs, work.hidden, int(space.n)), out_keys=["logits"], **seen)
    else:
        actions = space.shape[0]
        body = nn.Sequential(layers(inputs, work.hidden, actions), NormalHead(actions))
        head = TensorDictModule(body, out_keys=["loc", "scale"], **seen)
        categorical = {"distribution_class": IndependentNormal, "in_keys": ["loc", "scale"]}
    actor = ProbabilisticActor(head, return_log_prob=True, **categorical)
    return actor, ValueOperator(layers(inputs, work.hidden, 1), **seen)


def ppo(task: common.Task, env: Any) -> None:
    """Collect, then go over what was collected a few times."""
    work = task.workload
    actor, critic = networks(work, env)
    collector = Collector(env, actor, frames_per_batch=work.steps, total_frames=-1)
    storage, sampler = LazyTensorStorage(work.steps), SamplerWithoutReplacement()
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=work.minibatch)
    advantage = GAE(
        gamma=workloads.DISCOUNT, lmbda=workloads.GAE_LAMBDA, value_network=critic, average_gae=False
    )
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=workloads.CLIP,
        entropy_coeff=workloads.ENTROPY_COST,
        critic_coeff=workloads.VALUE_COST,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimiser, steps = torch.optim.Adam(loss.parameters(), lr=workloads.LEARNING_RATE), 0
    for data in collector:
        steps += data.numel()
        with torch.no_grad():
            data = advantage(data)
        buffer.extend(data.reshape(-1))
        for _ in range(work.epochs):
            for minibatch in buffer:
                optimiser.zero_grad(set_to_none=True)
                out = loss(minibatch)
                (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
                torch.nn.utils.clip_grad_norm_(loss.parameters(), workloads.MAX_GRAD_NORM)
                optimiser.step()
        if task.meter.mark(steps):
            break
    collector.shutdown()


def dqn(work: workloads.Workload, env: Any) -> tuple[Any, Any, Any, float]:
    """The policy that explores, the loss, what moves the target network, and the learning rate."""
    spec = env.action_spec_unbatched
    network = MLP(
        in_features=env.observation_spec["observation"].shape[-1],
        out_features=spec.space.n,
        num_cells=list(work.hidden),
        activation_class=nn.ReLU,
    )
    actor = QValueActor(network, in_keys=["observation"], spec=spec)
    greedy = EGreedyModule(spec, eps_init=workloads.EPSILON, eps_end=workloads.EPSILON)
    loss = DQNLoss(actor, loss_function="smooth_l1", delay_value=True)
    target = HardUpdate(loss, value_network_update_interval=workloads.SYNC)
    return TensorDictSequential(actor, greedy), loss, target, 1e-3


def sac(work: workloads.Workload, env: Any) -> tuple[Any, Any, Any, float]:
    """The same of SAC; its loss makes the second critic, the target networks and the temperature."""
    spec, inputs = env.action_spec_unbatched, env.observation_spec["observation"].shape[-1]
    actions, shared = spec.shape[-1], {"num_cells": list(work.hidden), "activation_class": nn.ReLU}
    body = nn.Sequential(MLP(in_features=inputs, out_features=2 * actions, **shared), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high, "tanh_loc": False},
    )
    critic = ValueOperator(
        MLP(in_features=inputs + actions, out_features=1, **shared), in_keys=["observation", "action"]
    )
    loss = SACLoss(actor, critic, num_qvalue_nets=2, loss_function="l2")
    return actor, loss, SoftUpdate(loss, tau=workloads.TAU), 3e-4


def replay(task: common.Task, env: Any) -> None:
    """DQN and SAC: collect `steps` transitions, then make `updates` gradient steps, each on a new batch.

    The collector yields exactly `steps` at a time, and the loop below is ours, so the ratio is exact.
    """
    work = task.workload
    policy, loss, target, rate = {"dqn": dqn, "sac": sac}[work.algorithm](work, env)
    loss.make_value_estimator(gamma=workloads.DISCOUNT)
    collector = Collector(
        env, policy, frames_per_batch=work.steps, total_frames=-1, init_random_frames=workloads.WARM_UP
    )
    # Threads that prefetch, as in TorchRL's examples, made DQN slower here and did not matter to SAC.
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(workloads.CAPACITY), batch_size=work.minibatch)
    optimiser, steps = torch.optim.Adam(loss.parameters(), lr=rate, fused=True), 0

    def update(batch: Any) -> None:
        out = loss(batch)
        sum(value for key, value in out.items() if key.startswith("loss")).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    # The target networks move outside of it: when DQN's does so is counted in Python.
    if task.number("compile", 0):
        update = torch.compile(update)
    for data in collector:
        steps += data.numel()
        # The loss needs no more of it; whatever else is kept would be copied with every batch.
        buffer.extend(data.reshape(-1).select(*loss.in_keys))
        if steps < workloads.WARM_UP:
            continue
        for _ in range(work.updates):
            update(buffer.sample())
            target.step()
        if task.meter.mark(steps):
            break
    collector.shutdown()


def main() -> None:
    """Measure one workload."""
    task = common.Task("torchrl", "torchrl", __doc__)
    torch.set_num_threads(task.number("threads", 1))
    env = make_envs(task)
    (ppo if task.workload.algorithm == "ppo" else replay)(task, env)
    task.report()


if __name__ == "__main__":
    main()
