"""Does it learn? Train each task with five seeds and print mean and spread of the evaluated return.

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
from pathlib import Path
from typing import Any

import numpy as np
from learning_tasks import TASKS

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results" / "learning.jsonl"


# The README shows one task of each algorithm; docs/learning.md shows all.
README_TASKS = (
    "cartpole",
    "halfcheetah",
    "memory",
    "reinforce",
    "a2c",
    "a3c",
    "impala-memory",
    "dqn",
    "lunarlander",
    "breakout",
    "ape-x",
    "r2d2",
    "ddpg-halfcheetah",
    "td3-halfcheetah",
    "sac-halfcheetah",
)


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
        if name in README_TASKS:
            algorithm, env = task.command.split()[:2]
            short.append(f"| {name} ({algorithm}, {env}) | {steps:,} | {found} | {task.reference} |")
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
