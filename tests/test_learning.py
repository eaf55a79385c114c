"""Short forms of benchmarks/learning.py: PPO learns every kind of task."""

from __future__ import annotations

import pytest
from thorough import mostly_thorough, thorough

import sherd
from sherd.algorithms.ppo import PPO

CONTINUOUS = {"normalise_observations": True, "entropy_cost": 0.0, "epochs": 10}
PENDULUM = PPO(minibatches=8, discount=0.9, **CONTINUOUS)
CHEETAH = PPO(horizon=256, minibatches=32, **CONTINUOUS)
GRU = PPO(network="gru", memory_units=32, horizon=64, learning_rate=3e-3)
MLP = PPO(network="mlp", horizon=64, learning_rate=3e-3)

# algorithm, environment, policy, steps, environments, evaluated return: at least, at most
TASKS = {
    "cartpole": (PPO(), "CartPole-v1", "Single", 60_000, 8, 400, 500),
    "cartpole in the graph": (PPO(), "graph/CartPole-v1", "Fused", 60_000, 8, 475, 500),
    "acrobot": (PPO(), "Acrobot-v1", "Single", 50_000, 8, -100, -60),
    "pendulum": (PENDULUM, "graph/Pendulum-v1", "Fused", 150_000, 8, -450, -100),
    "half cheetah": (CHEETAH, "HalfCheetah-v5", "Single", 60_000, 8, -150, 5000),
    "with memory": (GRU, "graph/StatelessCartPole-v1", "Fused", 150_000, 16, 400, 500),
    "without memory": (MLP, "graph/StatelessCartPole-v1", "Fused", 150_000, 16, 10, 200),
    "masked": (PPO(), "graph/LegalMoves-v0", "Fused", 60_000, 16, 13, 17),
}
ALWAYS = ("cartpole",)


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_thorough(TASKS, ALWAYS))
def test_learns(name):
    algorithm, env, policy, steps, envs, least, most = TASKS[name]
    run = sherd.train(algorithm, env, policy=policy, steps=steps, envs=envs, seed=1, eval_episodes=20)
    assert least <= run.summary["return_mean"] <= most


@thorough
@pytest.mark.slow
def test_half_cheetah_improves():
    run = sherd.train(CHEETAH, "HalfCheetah-v5", steps=60_000, envs=8, seed=2, eval_episodes=0)
    returns = run.metrics["episode_return"]
    finished = returns[returns == returns]
    assert finished[-1] > finished[0] + 80
