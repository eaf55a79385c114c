"""Where does each distribution policy win? PPO's steps per second under every one of them.

    python benchmarks/policies.py                 all workloads, every policy, one after another
    python benchmarks/policies.py slow cartpole
    python benchmarks/policies.py --write         also put the tables into the documents

PPO remembers nothing, so ReplayShards is measured with DQN, beside DQN under Single.

Each measurement is one training run in processes of its own, counted once everything is compiled. Rounds
over all policies are interleaved and the best of them is shown, with its ratio to Single: the machine is
shared, and what slows a run down is never the run itself.

The second table says how far each policy is from what simulator and learner, each measured alone, allow: one
after the other where the policy makes one wait for the other, the slower of the two where it does not.

Every measurement is a line of docs/results/policies.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "policies.jsonl"
ROUNDS = 2
SECONDS, WARM_UP = 4.0, 1.0  # of a limit
DASH = "A dash: the policy cannot hold that environment."


@dataclass(frozen=True)
class Workload:
    """An algorithm on an environment; `actors` is how many simulator processes pay off."""

    title: str
    env: str
    envs: int
    horizon: int
    steps: int
    actors: int
    algorithm: str = "PPO"
    updates: int = 0
    """Of DQN: in an iteration."""
    batch: int = 0
    """Of DQN: what is drawn from replay for an update."""

    @property
    def label(self) -> str:
        """What a line of the results calls it."""
        return f"{self.algorithm}, {self.title}, {self.envs} x {self.horizon}"


WORKLOADS = {
    "cartpole": Workload("CartPole-v1", "CartPole-v1", 8, 128, 200_000, 2),
    "halfcheetah": Workload("HalfCheetah-v5", "HalfCheetah-v5", 8, 256, 80_000, 2),
    "slow": Workload("1 ms a step", "slow_env:make", 16, 64, 24_000, 8),
    # Eight simulators to an actor instead of two, so that it acts once in 8 ms.
    "slow-64": Workload("1 ms, 8 to an actor", "slow_env:make", 64, 32, 48_000, 8),
    "graph": Workload("graph/CartPole-v1", "graph/CartPole-v1", 64, 128, 800_000, 2),
    # An update every 4 steps, each step replayed 32 times; and a large one every 64 steps, as Ape-X makes
    # them, each step replayed 8 times.
    "dqn-cartpole": Workload("CartPole-v1", "CartPole-v1", 8, 4, 60_000, 2, "DQN", 8, 128),
    "dqn-slow": Workload("1 ms a step", "slow_env:make", 16, 64, 32_000, 8, "DQN", 16, 512),
    # As slow-64; the learner does the same as with two to an actor.
    "dqn-slow-64": Workload("1 ms, 8 to an actor", "slow_env:make", 64, 16, 32_000, 8, "DQN", 16, 512),
}
# The marks of each algorithm's tables in the documents.
MARKS = {"PPO": ("policies", "best cases"), "DQN": ("policies dqn", "best cases dqn")}


def policies(algorithm: str, actors: int) -> dict[str, dict[str, object]]:
    """Every policy that the algorithm's table shows, with its options."""
    if algorithm == "DQN":
        return {
            "Single": {},
            "ReplayShards": {"actors": actors},
            "ReplayShards, asynchronous": {"actors": actors, "asynchronous": True},
        }
    return {
        "Single": {},
        "SingleLearnerCoarse": {"actors": actors},
        "SingleLearnerCoarse, asynchronous": {"actors": actors, "asynchronous": True},
        "SingleLearnerFine": {"actors": actors},
        "MultiLearner": {"learners": 2},
        "Fused": {},
        "Environments": {"actors": actors},
        "Environments, asynchronous": {"actors": actors, "asynchronous": True},
        "Central": {"workers": 2},
        "Central, asynchronous": {"workers": 2, "asynchronous": True},
    }


def measure(workload: Workload, policy: str, options: dict[str, object]) -> float | None:
    """Steps per second of one run; None where the policy cannot hold the environment."""
    if policy == "Fused" and not workload.env.startswith("graph/"):
        return None
    return ask("--one", [workload.__dict__, policy, options])


def run_one(given: str) -> None:
    """One training run, in this process and its children."""
    fields, name, options = json.loads(given)
    workload = Workload(**fields)
    train(workload, workload.env, name.split(",")[0], options)


def train(workload: Workload, env: Any, policy: str, options: dict[str, Any]) -> None:
    """Train, and print steps per second."""
    import sherd
    from sherd.algorithms.dqn import DQN
    from sherd.algorithms.ppo import PPO
    from sherd.policies import load_policy
    from sherd.runtime.jax_settings import use_devices

    if options.get("devices", 1) > 1:
        use_devices(options["devices"])
    horizon, updates, batch = workload.horizon, workload.updates, workload.batch
    replays = workload.algorithm == "DQN"
    run = sherd.train(
        DQN(horizon=horizon, updates=updates, batch=batch) if replays else PPO(horizon=horizon),
        env,
        policy=load_policy(policy)(**options),
        steps=workload.steps,
        envs=workload.envs,
        eval_episodes=0,
    )
    seconds, steps = run.metrics["seconds"], run.metrics["steps"]
    half = len(seconds) // 4  # the first quarter warms up
    print(json.dumps((steps[-1] - steps[half]) / (seconds[-1] - seconds[half])))


def ask(flag: str, given: list[object]) -> float | None:
    """A number from a process of its own."""
    command = [sys.executable, str(HERE / "policies.py"), flag, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return float(json.loads(done.stdout.splitlines()[-1]))


def limit_here(given: str) -> None:
    """Steps per second of the simulator alone in some processes, or of the rest on some devices."""
    sys.path.insert(0, str(HERE / "peers"))
    import run_limits

    fields, part, count = json.loads(given)
    workload = Workload(**fields)
    if part == "simulator":
        print(run_limits.simulate(workload.env, workload.envs, count, (SECONDS, WARM_UP)))
        return
    from sherd.envs import describe

    train(workload, run_limits.Idle(describe(workload.env)), "Fused", {"devices": count})


def limits(workload: Workload) -> dict[str, dict[int, float]]:
    """The halves of a workload alone: part -> how many processes or devices -> steps per second."""
    counts = {"simulator": sorted({1, 2, workload.actors}), "rest": [1, 2]}
    if workload.env.startswith("graph/"):
        counts["simulator"] = [1]
    found: dict[str, dict[int, float]] = {part: {} for part in counts}
    for part, several in counts.items():
        for count in several:
            rate = ask("--limit", [workload.__dict__, part, count])
            keep(workload.label, f"{part} alone, {count}", rate)
            if rate:
                found[part][count] = rate
    return found


def keep(workload: str, what: str, rate: float | None) -> None:
    """Say what was measured, and add it to the results."""
    print(f"{workload}: {what}: {rate and round(rate)}", file=sys.stderr)
    if rate:
        row = {"date": f"{datetime.now():%Y-%m-%d %H:%M}", "workload": workload, "what": what}
        with RESULTS.open("a") as file:
            file.write(json.dumps(row | {"steps_per_second": round(rate, 1)}) + "\n")


def limit_of(policy: str, halves: dict[str, dict[int, float]], actors: int) -> float:
    """What a policy cannot exceed."""
    processes = {"Single": 1, "Fused": 1, "MultiLearner": 2, "Central": 2}
    count = processes.get(policy.split(",")[0], actors)
    simulator = halves["simulator"].get(count, max(halves["simulator"].values()))
    rest = max(halves["rest"].values())
    return min(simulator, rest) if "asynchronous" in policy else 1 / (1 / simulator + 1 / rest)


def best_cases(results: dict[str, dict[str, float | None]], names: list[str]) -> str:
    """For every policy the workload in which it comes closest to its limit."""
    halves = {name: limits(WORKLOADS[name]) for name in names}
    lines = ["| policy | its best case | steps/s | limit | reached |", "|---|---|---|---|---|"]
    for policy in policies(WORKLOADS[names[0]].algorithm, 2):
        found = []
        for name in names:
            rate = results[name].get(policy)
            if rate:
                limit = limit_of(policy, halves[name], WORKLOADS[name].actors)
                found.append((rate / limit, rate, limit, WORKLOADS[name].title))
        if found:
            share, rate, limit, title = max(found)
            lines.append(f"| {policy} | {title} | {rate:,.0f} | {limit:,.0f} | {share:.0%} |")
    return "\n".join(lines) + "\n"


def table(results: dict[str, dict[str, float | None]], names: list[str]) -> str:
    """The results in Markdown: steps per second, and how many times Single's."""
    lines = ["| policy | " + " | ".join(WORKLOADS[name].title for name in names) + " |"]
    lines.append("|---|" + "---|" * len(names))
    for policy in policies(WORKLOADS[names[0]].algorithm, 2):
        cells = []
        for name in names:
            rate, single = results[name].get(policy), results[name]["Single"]
            cells.append(f"{rate:,.0f} ({rate / single:.1f}x)" if rate and single else "-")
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def machine() -> str:
    """What this was measured on."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{os.cpu_count()} cores of {model}, no GPU, Python {platform.python_version()}"


def write(name: str, text: str) -> None:
    """Put a table between its marks in the documents that show it."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    for file in (HERE.parent / "README.md", HERE.parent / "docs/policies/README.md"):
        content = file.read_text()
        if begin in content:
            head, rest = content.split(begin, 1)
            file.write_text(f"{head}{begin}\n{text}{end}{rest.split(end, 1)[1]}")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; all of them by default")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--limit", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.one:
        run_one(given.one)
        return
    if given.limit:
        limit_here(given.limit)
        return
    names = given.workloads or list(WORKLOADS)
    results: dict[str, dict[str, float | None]] = {name: {} for name in names}
    for _ in range(given.rounds):
        for name in names:
            work = WORKLOADS[name]
            for policy, options in policies(work.algorithm, work.actors).items():
                rate = measure(work, policy, options)
                best = max(filter(None, (rate, results[name].get(policy))), default=None)
                results[name][policy] = best
                keep(work.label, policy, rate)
    for algorithm, marks in MARKS.items():
        measured = [name for name in names if WORKLOADS[name].algorithm == algorithm]
        if measured:
            show(algorithm, results, measured, marks if given.write else ())


def show(
    algorithm: str, results: dict[str, dict[str, float | None]], names: list[str], marks: tuple[str, ...]
) -> None:
    """Print both tables of an algorithm, and put them between their marks, if any."""
    head = f"Steps per second of {algorithm}, and how many times Single's. {machine()}."
    head += f" {DASH}" if algorithm == "PPO" else ""
    texts = f"{head}\n\n{table(results, names)}", best_cases(results, names)
    print(*texts, sep="\n")
    for mark, text in zip(marks, texts):
        write(mark, text)


if __name__ == "__main__":
    main()
