"""The same continuous-control task with Stable-Baselines3, to compare returns on one machine.

It needs an environment of its own (PyTorch is no dependency of Sherd's):

    python -m venv sb3 && sb3/bin/pip install torch==2.13.0 stable-baselines3 'gymnasium[mujoco]'
    sb3/bin/python benchmarks/learning_sb3.py sac --seeds 1 2 3 4 5

Settings are those of the tasks `ddpg-`, `td3-` and `sac-halfcheetah` of `learning.py`: eight
environments, 16 updates for every 4 steps of each, batches of 128, two layers of 128. Results are appended to
docs/results/learning_sb3.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "learning_sb3.jsonl"
ENV, ENVS, STEPS = "HalfCheetah-v5", 8, 300_000
KINDS = {name: getattr(stable_baselines3, name.upper()) for name in ("ddpg", "td3", "sac")}
RATES = {"ddpg": 1e-3, "td3": 1e-3, "sac": 3e-4}


def measure(name: str, seed: int) -> dict[str, Any]:
    """Train once and evaluate 100 episodes."""
    began = time.perf_counter()
    env = make_vec_env(ENV, ENVS, seed=seed)
    size = env.action_space.shape
    noise = None if name == "sac" else NormalActionNoise(np.zeros(size), np.full(size, 0.1))
    model = KINDS[name](
        "MlpPolicy",
        env,
        learning_rate=RATES[name],
        buffer_size=300_000,
        learning_starts=5_000,
        batch_size=128,
        train_freq=4,
        gradient_steps=16,
        action_noise=noise,
        policy_kwargs={"net_arch": [128, 128]},
        seed=seed,
        device="cpu",
    )
    model.learn(STEPS)
    seconds = time.perf_counter() - began
    returns, _ = evaluate_policy(
        model, make_vec_env(ENV, ENVS, seed=seed + 1_000_003), 100, return_episode_rewards=True
    )
    return {
        "task": f"{name}-halfcheetah",
        "seed": seed,
        "steps": STEPS,
        "seconds": round(seconds, 1),
        "return_mean": float(np.mean(returns)),
        "version": stable_baselines3.__version__,
    }


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithms", nargs="+", choices=list(KINDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    for seed in options.seeds:
        for name in options.algorithms:
            row = measure(name, seed)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{name} seed {seed}: {row['return_mean']:.1f} in {row['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
