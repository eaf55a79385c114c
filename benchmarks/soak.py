"""Does memory stay flat, and speed the same, over a long run?

    python benchmarks/soak.py                                20 minutes, then a table and a verdict
    python benchmarks/soak.py --minutes 1
    python benchmarks/soak.py -- dqn CartPole-v1 --policy ReplayShards --policy.asynchronous

It trains, from the first row of metrics on looks every second at the memory of all processes together, and
ends the run with Ctrl-C. The first quarter is for caches and queues to fill; the last one may not need more
than the second, but for the numbers of the rows themselves. Run it with nothing else busy, above all no other
Sherd: of code that processes share each counts its part, which grows when others end.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import Family

# Most processes and queues of all: simulators, a policy worker, a learner, nobody waits.
COMMAND = "ppo CartPole-v1 --envs 8 --policy Environments --policy.actors 2 --policy.asynchronous"
STARTING = 300.0
ALLOWED = 0.02  # of the memory; what a shared machine's page cache and allocator make it waver by


def soak(command: list[str], seconds: float, home: Path) -> tuple[list[float], list[tuple[float, float]]]:
    """The memory of every second in megabytes, and (seconds, steps) of the run's rows."""
    rows = home / "metrics.jsonl"
    train = [sys.executable, "-m", "sherd", "train", *command, "--steps", str(10**10), "--eval-episodes", "0"]
    process = subprocess.Popen([*train, "--run-dir", str(home), "--quiet"])
    family, began, used = Family(process.pid), time.monotonic(), []
    try:
        while not (rows.exists() and rows.stat().st_size):
            family.sample()
            if process.poll() is not None or time.monotonic() - began > STARTING:
                raise SystemExit("the run did not begin")
            time.sleep(0.1)
        first = time.monotonic()
        while time.monotonic() - first < seconds:
            used.append(family.sample())
            if process.poll() is not None:
                raise SystemExit(f"the run ended by itself with exit code {process.returncode}")
            time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        family.end()
        process.wait()
    told = [json.loads(line) for line in rows.read_text().splitlines()]
    return used, [(row["seconds"], row["steps"]) for row in told]


def quarters(used: list[float]) -> list[float]:
    """The mean of each quarter."""
    size = len(used) // 4
    return [sum(used[n * size : (n + 1) * size]) / size for n in range(4)]


def speed(rows: list[tuple[float, float]], low: float, high: float) -> float:
    """Steps per second between two points of the run, given as shares of its time."""
    begin, end = rows[0][0], rows[-1][0]
    within = [row for row in rows if begin + low * (end - begin) <= row[0] <= begin + high * (end - begin)]
    return (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0])


def main() -> None:
    """Soak, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default: 20)")
    parser.add_argument("command", nargs="*", help=f"what follows `sherd train` (default: {COMMAND})")
    given = parser.parse_args()
    if given.minutes < 0.2:
        parser.error("--minutes is too short to compare quarters; give 0.2 or more")
    command = given.command or shlex.split(COMMAND)
    with tempfile.TemporaryDirectory() as home:
        used, rows = soak(command, given.minutes * 60, Path(home) / "run")
    print(f"sherd train {shlex.join(command)}: {given.minutes:g} minutes, {rows[-1][1]:,.0f} steps\n")
    print("| quarter | memory, MB | steps/s |\n|---|---|---|")
    memory = quarters(used)
    for quarter, mean in enumerate(memory):
        print(f"| {quarter + 1} | {mean:,.1f} | {speed(rows, quarter / 4, (quarter + 1) / 4):,.0f} |")
    grown = memory[3] - memory[1]
    flat = grown < ALLOWED * memory[1]
    print(f"\nfrom the second quarter to the last: {grown:+.1f} MB, {'flat' if flat else 'GROWING'}")
    raise SystemExit(0 if flat else 1)


if __name__ == "__main__":
    main()
