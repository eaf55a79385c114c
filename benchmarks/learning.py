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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from learning_tasks import FAMILIES, TASKS

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


Row = dict[str, Any]


def found(rows: list[Row], name: str) -> list[Row]:
    """What is known of a task: of each seed the newest result that was got with the task's command."""
    return list(
        {r["seed"]: r for r in rows if (r["task"], r["command"]) == (name, TASKS[name].command)}.values()
    )


def spread(rows: list[Row]) -> str:
    """Mean, deviation and lowest of the seeds' returns."""
    means = np.array([r["return_mean"] for r in rows], float)
    return f"{means.mean():.1f} ({means.std():.1f}) | {means.min():.1f}"


def long_table(names: Iterable[str], rows: list[Row]) -> str:
    """Markdown with the commands, one line per task."""
    lines = ["| task | `sherd train ...` | seeds | return: mean (sd) | lowest seed | steps/s | reference |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name in names:
        if mine := found(rows, name):
            speed = np.median([float(str(r["steady_steps_per_second"])) for r in mine])
            start = f"| {name} | `{TASKS[name].command}` | {len(mine)} | {spread(mine)}"
            lines.append(f"{start} | {speed:,.0f} | {TASKS[name].reference} |")
    return "\n".join(lines)


def short_table(names: Iterable[str], rows: list[Row]) -> str:
    """Markdown for the README."""
    lines = [
        "| task | steps | seeds | return: mean (sd) | lowest seed | reference |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        if mine := found(rows, name):
            algorithm, env = TASKS[name].command.split()[:2]
            steps = int(TASKS[name].command.split("--steps ")[1].split()[0])
            what = f"| {name} ({algorithm}, {env}) | {steps:,} | {len(mine)}"
            lines.append(f"{what} | {spread(mine)} | {TASKS[name].reference} |")
    return "\n".join(lines)


def write_pages(rows: list[Row]) -> None:
    """Put the tables where they are shown: the README, docs/learning.md and the page of each algorithm."""
    write_between(ROOT / "README.md", "learning-table", short_table(README_TASKS, rows))
    for family, tasks in FAMILIES.items():
        write_between(ROOT / "docs" / "learning.md", family, long_table(tasks, rows))
    for page in (ROOT / "docs" / "algorithms").glob("*.md"):
        mine = [name for name, task in TASKS.items() if task.command.split()[0] == page.stem]
        write_between(page, "results", long_table(mine, rows))


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
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; none: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the tables into README.md, docs/learning.md and the algorithms' pages",
    )
    options = parser.parse_args()
    if unknown := [name for name in options.tasks if name not in TASKS]:
        parser.error(f"there is no task {unknown[0]!r}; there are {', '.join(TASKS)}")
    for name in [] if options.table else options.tasks or TASKS:
        for seed in options.seeds:
            row = measure(name, seed)
            with RESULTS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            short_of = "" if row["return_mean"] >= TASKS[name].reached else f"  (below {TASKS[name].reached})"
            print(f"{name} seed {seed}: {row['return_mean']:.1f}{short_of}", file=sys.stderr, flush=True)
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    if options.write:
        write_pages(rows)
    print(long_table(TASKS, rows))


if __name__ == "__main__":
    main()
