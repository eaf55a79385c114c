"""What `learning.py` trains: a command, the return that every seed should reach, and what others report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A command, the return it should reach on every seed, and what others report."""

    command: str
    reached: float
    reference: str


THRESHOLD = "475 is Gymnasium's threshold, 500 the most"
CONTINUOUS = "--algo.normalise-observations --algo.entropy-cost 0"
STATELESS = "graph/StatelessCartPole-v1"
COARSE = "--policy SingleLearnerCoarse --policy.actors 2 --policy.asynchronous"

PPO = {
    "cartpole": Task("ppo CartPole-v1 --steps 200000 --envs 8", 475, THRESHOLD),
    "cartpole-fused": Task(
        "ppo graph/CartPole-v1 --policy Fused --steps 200000 --envs 8", 475, "as above, in one XLA program"
    ),
    "acrobot": Task(
        "ppo Acrobot-v1 --steps 200000 --envs 8",
        -100,
        "Gymnasium's threshold is -100; RL Baselines3 Zoo, 1M steps, one run: -74",
    ),
    "pendulum": Task(
        "ppo Pendulum-v1 --steps 300000 --envs 8 --algo.epochs 10 --algo.minibatches 8 "
        f"--algo.discount 0.9 {CONTINUOUS}",
        -250,
        "RL Baselines3 Zoo, tuned PPO, one run of 100k: -172",
    ),
    "halfcheetah": Task(
        "ppo HalfCheetah-v5 --steps 1000000 --envs 8 --algo.horizon 256 --algo.epochs 10 "
        f"--algo.minibatches 32 --algo.learning-rate 3e-4 {CONTINUOUS}",
        1000,
        "after 1M steps: CleanRL 1443 (v4), RL Baselines3 Zoo, tuned, one run: 5819 (v3)",
    ),
    "memory": Task(
        f"ppo {STATELESS} --policy Fused --steps 1000000 --envs 32 --algo.network gru",
        450,
        "500 is the most; without memory see the next row",
    ),
    "memory-without": Task(
        f"ppo {STATELESS} --policy Fused --steps 1000000 --envs 32 --algo.network mlp",
        0,
        "the same budget for an MLP",
    ),
    "masked": Task(
        "ppo graph/LegalMoves-v0 --policy Fused --steps 500000 --envs 16",
        14,
        "16 is optimal, 10 is any legal action",
    ),
}

ACTOR_CRITICS = {
    "reinforce": Task("reinforce CartPole-v1 --steps 200000 --envs 8", 400, THRESHOLD),
    "a2c": Task(
        "a2c CartPole-v1 --steps 200000 --envs 8",
        450,
        f"{THRESHOLD}; RL Baselines3 Zoo, one run of 500k: 500",
    ),
    "a3c": Task(
        "a2c CartPole-v1 --steps 200000 --envs 8 --policy Central --policy.workers 2 --policy.asynchronous",
        450,
        THRESHOLD,
    ),
    "impala": Task(f"impala CartPole-v1 --steps 200000 --envs 8 {COARSE}", 450, THRESHOLD),
    "impala-environments": Task(
        "impala CartPole-v1 --steps 300000 --envs 8 --policy Environments --policy.asynchronous",
        450,
        THRESHOLD,
    ),
    "impala-memory": Task(
        f"impala {STATELESS} --steps 1200000 --envs 32 {COARSE} --algo.network gru --algo.memory-units 64 "
        "--algo.learning-rate 5e-4 --algo.entropy-cost 0.03",
        400,
        "500 is the most; an MLP reaches 43 (`memory-without`)",
    ),
    "ppo-vtrace": Task(f"ppo CartPole-v1 --steps 200000 --envs 8 {COARSE} --algo.vtrace", 475, THRESHOLD),
}

_RAINBOW = "--algo.dueling --algo.n-step 3 --algo.prioritised --algo.noisy --algo.atoms 51"
_FEWER = "--algo.updates 4 --algo.batch 64"
_NOISY = "--algo.noisy --algo.atoms 51 --algo.n-step 1"
_MINATAR = "MinAtar's own DQN after 500k frames, as one user reports it: 5.8"
_CARTPOLE = "dqn CartPole-v1 --steps 100000 --envs 8"
_LUNAR = "dqn LunarLander-v3 --steps 300000 --envs 8"
DQN = {
    "dqn": Task(_CARTPOLE, 475, f"{THRESHOLD}; RL Baselines3 Zoo, one run of 50k: 500"),
    "dqn-single": Task(f"{_CARTPOLE} --algo.no-double", 450, THRESHOLD),
    "dqn-dueling": Task(f"{_CARTPOLE} --algo.dueling", 450, THRESHOLD),
    "dqn-n-step": Task(f"{_CARTPOLE} --algo.n-step 3", 450, THRESHOLD),
    "dqn-prioritised": Task(f"{_CARTPOLE} --algo.prioritised", 450, THRESHOLD),
    "dqn-noisy": Task(f"{_CARTPOLE} --algo.noisy --algo.n-step 1", 450, THRESHOLD),
    "dqn-c51": Task(f"{_CARTPOLE} --algo.atoms 51 --algo.low 0 --algo.high 100", 450, THRESHOLD),
    "rainbow": Task(f"{_CARTPOLE} {_FEWER} {_RAINBOW} --algo.low 0 --algo.high 100", 450, THRESHOLD),
    "ape-x": Task(
        f"{_CARTPOLE} --policy ReplayShards --policy.actors 2 --policy.shards 2 --policy.asynchronous "
        "--algo.prioritised --algo.n-step 3",
        450,
        THRESHOLD,
    ),
    "r2d2": Task(
        f"dqn {STATELESS} --policy Fused --steps 300000 --envs 8 --algo.network gru --algo.prioritised "
        "--algo.memory-units 64 --algo.updates 4 --algo.batch 32",
        400,
        "500 is the most; an MLP reaches 43 (`memory-without`)",
    ),
    "lunarlander": Task(
        _LUNAR, 150, "200 is Gymnasium's threshold; RL Baselines3 Zoo, one run of 100k (v2): 154"
    ),
    "lunarlander-flags": Task(f"{_LUNAR} --algo.dueling --algo.prioritised", 150, "as above"),
    "lunarlander-noisy-c51": Task(f"{_LUNAR} {_NOISY} --algo.low -200 --algo.high 200", 150, "as above"),
    "breakout": Task(f"dqn MinAtar/Breakout-v1 --steps 200000 --envs 8 {_FEWER}", 4, _MINATAR),
    "breakout-flags": Task(
        f"dqn MinAtar/Breakout-v1 --steps 200000 --envs 8 {_FEWER} --algo.dueling --algo.prioritised",
        4,
        _MINATAR,
    ),
    "breakout-noisy-c51": Task(
        f"dqn MinAtar/Breakout-v1 --steps 200000 --envs 8 {_FEWER} {_NOISY} --algo.low 0 --algo.high 20",
        4,
        _MINATAR,
    ),
}

_CHEETAH = (
    "HalfCheetah-v5 --steps 300000 --envs 8 --algo.updates 16 --algo.batch 128 --algo.hidden 128 128 "
    "--algo.capacity 300000"
)
_PENDULUM = "Pendulum-v1 --steps 30000 --envs 8 --algo.warm-up 1000 --algo.hidden 64 64 --algo.batch 128"
CONTINUOUS_CONTROL = {
    f"{name}-{task}": Task(f"{name} {command}", reached, reference)
    for task, command, reached, reference in (
        ("pendulum", _PENDULUM, -250.0, "RL Baselines3 Zoo, one run of 20k: DDPG -152, TD3 -152, SAC -157"),
        (
            "halfcheetah",
            _CHEETAH,
            2500.0,
            "with an update per step: SB3's SAC, 300k steps, one episode of one run: 7032; RL Baselines3 "
            "Zoo (v3), 1M steps, one run: TD3 9709",
        ),
    )
    for name in ("ddpg", "td3", "sac")
} | {"sac-discrete": Task("sac CartPole-v1 --steps 60000 --envs 8 --algo.hidden 64 64", 400, THRESHOLD)}

FAMILIES = {"ppo": PPO, "actor-critics": ACTOR_CRITICS, "q-learning": DQN, "continuous": CONTINUOUS_CONTROL}
TASKS: dict[str, Task] = {name: task for family in FAMILIES.values() for name, task in family.items()}
