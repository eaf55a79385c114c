"""Does it learn? Train PPO on each task with five seeds and print mean and spread of the evaluated return.

    python benchmarks/learning.py                 all tasks, five seeds each
    python benchmarks/learning.py cartpole --seeds 1 2
    python benchmarks/learning.py --table         only print the table of what was measured before

Each result is one line of docs/results/learning.jsonl; docs/learning.md shows the table.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "learning.jsonl"


@dataclass(frozen=True)
class Task:
    """A command, the return it should reach on every seed, and what others report."""

    command: str
    reached: float
    reference: str


CONTINUOUS = "--algo.normalise-observations --algo.entropy-cost 0"
TASKS = {
    "cartpole": Task(
        "ppo CartPole-v1 --steps 200000 --envs 8", 475, "475 is Gymnasium's threshold, 500 the most"
    ),
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
        "ppo graph/StatelessCartPole-v1 --policy Fused --steps 1000000 --envs 32 --algo.network gru",
        450,
        "500 is the most; without memory see the next row",
    ),
    "memory-without": Task(
        "ppo graph/StatelessCartPole-v1 --policy Fused --steps 1000000 --envs 32 --algo.network mlp",
        0,
        "the same budget for an MLP",
    ),
    "masked": Task(
        "ppo graph/LegalMoves-v0 --policy Fused --steps 500000 --envs 16",
        14,
        "16 is optimal, 10 is any legal action",
    ),
}


def measure(name: str, seed: int) -> dict[str, Any]:
    """Train once and return the result."""
    task = TASKS[name]
    arguments = shlex.split(task.command)
    command = [sys.executable, "-m", "sherd", "train", *arguments, "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--eval-episodes", "100", "--json", "--quiet"], capture_output=True, text=True, check=True
    )
    summary = json.loads(done.stdout)
    return {"task": name, "seed": seed, "command": task.command, **summary}


def tables(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Markdown, one line per task, long (with commands) and short; a seed's newest result counts."""
    long = ["| task | `sherd train ...` | seeds | return: mean (sd) | lowest seed | steps/s | reference |"]
    short = ["| task | steps | return of 5 seeds: mean (sd) | lowest seed | reference |"]
    long.append("|---|---|---|---|---|---|---|")
    short.append("|---|---|---|---|---|")
    for name, task in TASKS.items():
        latest = {r["seed"]: r for r in rows if r["task"] == name and r["command"] == task.command}
        if not latest:
            continue
        means = np.array([r["return_mean"] for r in latest.values()], float)
        speed = np.median([float(str(r["steady_steps_per_second"])) for r in latest.values()])
        found = f"{means.mean():.1f} ({means.std():.1f}) | {means.min():.1f}"
        long.append(
            f"| {name} | `{task.command}` | {len(means)} | {found} | {speed:,.0f} | {task.reference} |"
        )
        steps = int(task.command.split("--steps ")[1].split()[0])
        short.append(f"| {name} ({task.command.split()[1]}) | {steps:,} | {found} | {task.reference} |")
    return "\n".join(long), "\n".join(short)


def write_between(page: Path, marker: str, text: str) -> None:
    """Replace what stands between a marker's two comments."""
    before, _, rest = page.read_text().partition(f"<!-- {marker} -->")
    _, _, after = rest.partition(f"<!-- /{marker} -->")
    page.write_text(f"{before}<!-- {marker} -->\n{text}\n<!-- /{marker} -->{after}")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", choices=[*TASKS, []], help="which tasks; none: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into README.md and docs/learning.md"
    )
    options = parser.parse_args()
    for name in [] if options.table else options.tasks or TASKS:
        for seed in options.seeds:
            row = measure(name, seed)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            short_of = "" if row["return_mean"] >= TASKS[name].reached else f"  (below {TASKS[name].reached})"
            print(f"{name} seed {seed}: {row['return_mean']:.1f}{short_of}", file=sys.stderr, flush=True)
    long, short = tables([json.loads(line) for line in RESULTS.read_text().splitlines()])
    if options.write:
        write_between(ROOT / "docs" / "learning.md", "learning-table", long)
        write_between(ROOT / "README.md", "learning-table", short)
    print(long)


if __name__ == "__main__":
    main()
