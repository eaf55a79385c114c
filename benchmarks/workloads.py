"""What is compared: the workloads, and the settings under which each peer tries each of them.

Every peer's environment imports this file, so it needs nothing but the standard library. A setting is a
line of `key=value` words that the peer's script understands; the first of a list is the one that --quick
takes. All of a list are tried once, briefly, and the fastest is measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """An algorithm on an environment; the numbers mean the same to every peer."""

    title: str
    algorithm: str
    env: str
    envs: int
    horizon: int
    minibatch: int
    """Of PPO: samples of a gradient step; of DQN and SAC: what is drawn from replay for one."""
    hidden: tuple[int, ...] = (64, 64)
    epochs: int = 4
    updates: int = 0
    """Gradient steps of DQN and SAC in an iteration, which is `horizon` steps of each environment."""
    processes: tuple[int, ...] = (1, 2)
    """How many processes are tried for the simulator alone."""
    longer: float = 1.0
    """How many times as long as others it is measured: for several iterations of the slower libraries."""

    @property
    def steps(self) -> int:
        """Environment steps of an iteration."""
        return self.envs * self.horizon

    @property
    def minibatches(self) -> int:
        """Gradient steps of one of PPO's epochs."""
        return self.steps // self.minibatch


# What PPO's peers share. The rest, such as Adam's epsilon, costs no time and is theirs.
LEARNING_RATE, DISCOUNT, GAE_LAMBDA, CLIP = 2.5e-4, 0.99, 0.95, 0.2
ENTROPY_COST, VALUE_COST, MAX_GRAD_NORM = 0.01, 0.5, 0.5
# What those with a replay memory share. Exploration does not fall, so that no schedule needs the run's
# length.
CAPACITY, WARM_UP, EPSILON, SYNC, TAU = 100_000, 1_000, 0.05, 200, 0.005

SLOW = "slow_env:make_uneven"

WORKLOADS = {
    "cartpole-8": Workload("PPO, CartPole-v1, 8 x 128", "ppo", "CartPole-v1", 8, 128, 256),
    "cartpole-64": Workload("PPO, CartPole-v1, 64 x 128", "ppo", "CartPole-v1", 64, 128, 2048),
    "halfcheetah": Workload("PPO, HalfCheetah-v5, 8 x 256", "ppo", "HalfCheetah-v5", 8, 256, 512),
    "pong": Workload(
        "PPO, ALE/Pong-v5 84x84x4, Nature CNN, 8 x 128", "ppo", "ALE/Pong-v5", 8, 128, 256, longer=3.0
    ),
    "graph-cartpole": Workload(
        "PPO, CartPole in JAX, 2048 x 128", "ppo", "graph/CartPole-v1", 2048, 128, 65_536
    ),
    "slow": Workload(
        "PPO, a simulator that sleeps 0.5 to 1.5 ms a step, 64 x 32",
        "ppo",
        SLOW,
        64,
        32,
        512,
        processes=(1, 2, 4, 16, 64),
    ),
    "dqn": Workload(
        "DQN, CartPole-v1, 8 envs, an update every 4 steps, batch 128",
        "dqn",
        "CartPole-v1",
        8,
        4,
        128,
        updates=8,
    ),
    "sac": Workload(
        "SAC, HalfCheetah-v5, 8 envs, an update every step, batch 256",
        "sac",
        "HalfCheetah-v5",
        8,
        4,
        256,
        hidden=(256, 256),
        updates=32,
    ),
}

TITLES = {
    "sherd": "Sherd",
    "sb3": "Stable-Baselines3",
    "sbx": "SBX",
    "rllib": "RLlib",
    "sample-factory": "Sample Factory",
    "torchrl": "TorchRL",
    "tianshou": "Tianshou",
    "pufferlib": "PufferLib",
    "rejax": "Rejax",
}

_COARSE = "policy=SingleLearnerCoarse actors=2"
_ASIDE = "policy=SingleLearnerCoarse actors=1 asynchronous=1"
# Settings that were never the faster ones here are not tried, since each costs a start: a process for each
# environment of CartPole (8 to 64 of them on two cores), more than one thread for a network of 64 units.
_PPO_PEERS = {
    "sb3": ["vector=dummy threads=1", "vector=dummy threads=2"],
    "sbx": ["vector=dummy threads=1"],
    "rllib": ["runners=0 threads=2", "runners=2 threads=1"],
    "sample-factory": ["mode=serial threads=1", "mode=async workers=2 threads=1"],
    "torchrl": ["vector=gymnasium threads=1"],
    "tianshou": ["vector=dummy threads=1"],
    "pufferlib": ["vector=serial threads=1"],
}
_REPLAY_PEERS = {
    "sb3": ["vector=dummy threads=1", "vector=dummy threads=2"],
    "sbx": ["vector=dummy threads=1"],
    "rllib": ["runners=0 threads=1"],
    "torchrl": ["vector=gymnasium threads=2 compile=1", "vector=gymnasium threads=1"],
    "tianshou": ["vector=dummy threads=1", "vector=dummy threads=2"],
}

# workload -> peer -> the settings to try; a peer that is not named does not have the workload.
SETTINGS: dict[str, dict[str, list[str]]] = {
    "cartpole-8": {"sherd": [_ASIDE, "policy=Single"], **_PPO_PEERS},
    "cartpole-64": {"sherd": [_ASIDE, "policy=Single", f"{_COARSE} asynchronous=1"], **_PPO_PEERS},
    "halfcheetah": {
        "sherd": [f"{_COARSE} asynchronous=1", _COARSE, "policy=Single"],
        **_PPO_PEERS,
    },
    "pong": {
        # Two learners are a tenth slower (by turns 256, 254, 287 beside 307, 294, 317), which a trial of two
        # or three iterations does not always see.
        "sherd": ["policy=Single"],
        "sb3": ["vector=dummy threads=2", "vector=subproc threads=2"],
        "sbx": ["vector=dummy threads=1"],
        "rllib": ["runners=0 threads=2"],
        "sample-factory": ["mode=serial threads=2", "mode=async workers=2 threads=1"],
        "torchrl": ["vector=gymnasium threads=2"],
        "tianshou": ["vector=dummy threads=2"],
        "pufferlib": ["vector=serial threads=2", "vector=processes threads=2"],
    },
    "graph-cartpole": {
        "sherd": ["policy=Fused devices=1", "policy=Fused devices=2"],
        "rejax": [""],
    },
    "slow": {
        # One actor or four are a tenth to a third slower, which a trial of two seconds does not always see.
        "sherd": [f"{_COARSE} asynchronous=1"],
        "sb3": ["vector=subproc threads=1"],
        "rllib": ["runners=8 threads=1"],
        "sample-factory": ["mode=async workers=16 threads=1"],
        "torchrl": ["vector=parallel threads=1"],
        "tianshou": ["vector=shmem threads=1", "vector=subproc threads=1"],
        "pufferlib": ["vector=processes workers=16 threads=1"],
    },
    "dqn": {"sherd": [_ASIDE, "policy=Single"], **_REPLAY_PEERS},
    "sac": {"sherd": ["policy=Single"], **_REPLAY_PEERS},
}
