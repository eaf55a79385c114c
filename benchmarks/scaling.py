"""How do steps per second grow with environments, with processes and with the length of a rollout?

    python benchmarks/scaling.py                     all sweeps, 5 to 11 minutes
    python benchmarks/scaling.py environments
    python benchmarks/scaling.py --draw              only draw what was measured (needs matplotlib)

Every point is PPO in a process of its own, measured after its first update and a warm-up. Points are lines of
docs/results/scaling.jsonl; the newest of each is drawn into docs/images/scaling.svg.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = ROOT / "docs" / "results" / "scaling.jsonl"
IMAGE = ROOT / "docs" / "images" / "scaling.svg"
SECONDS, WARM_UP, LIMIT = 4.0, 1.0, 300.0


@dataclass(frozen=True)
class Point:
    """One measurement: a place on the x axis of a sweep, on one of its lines."""

    sweep: str
    line: str
    x: int
    env: str
    policy: str = "Single"
    envs: int = 8
    horizon: int = 128
    options: dict[str, Any] = field(default_factory=dict)


def points() -> list[Point]:
    """All of them."""
    found = []
    for envs in (1, 4, 16, 64, 256, 1024, 4096):
        found.append(Point("environments", "CartPole-v1, Single", envs, "CartPole-v1", envs=envs))
        found.append(
            Point("environments", "graph/CartPole-v1, Fused", envs, "graph/CartPole-v1", "Fused", envs)
        )
    for actors in (1, 2, 4, 8, 16):
        for asynchronous in (False, True):
            line = "asynchronous" if asynchronous else "synchronous"
            options = {"actors": actors, "asynchronous": asynchronous}
            where = ("slow_env:make", "SingleLearnerCoarse", 16, 64, options)
            found.append(Point("actors, 1 ms a step", f"SingleLearnerCoarse, {line}", actors, *where))
    for horizon in (8, 32, 128, 512, 2048):
        found.append(Point("rollout length", "CartPole-v1, Single", horizon, "CartPole-v1", horizon=horizon))
    return found


def measure_here(point: Point) -> float:
    """Steps per second of one point, in this process."""
    sys.path.insert(0, str(HERE / "peers"))
    import common
    from run_sherd import Count

    import sherd
    from sherd.algorithms.ppo import PPO
    from sherd.policies import load_policy

    meter = common.Meter(SECONDS, WARM_UP)
    sherd.train(
        PPO(horizon=point.horizon, epochs=4, minibatches=4, hidden=(64, 64), anneal=False),
        point.env,
        policy=load_policy(point.policy)(**point.options),
        sinks=[Count(meter)],
        steps=10**10,
        envs=point.envs,
        seed=1,
        eval_episodes=0,
    )
    return meter.rate


def measure(point: Point) -> None:
    """One point, in a process of its own; a line of the results."""
    command = [sys.executable, __file__, "--one", json.dumps(asdict(point))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, check=True, cwd=HERE, stdin=subprocess.DEVNULL
    )
    rate = float(done.stdout.splitlines()[-1])
    print(f"{point.sweep}, {point.line}, {point.x}: {rate:,.0f} steps/s", file=sys.stderr, flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({**asdict(point), "steps_per_second": round(rate, 1)}) + "\n")


def known() -> dict[str, dict[str, dict[int, float]]]:
    """What was measured last: sweep -> line -> x -> steps per second."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for text in RESULTS.read_text().splitlines() if RESULTS.exists() else []:
        row = json.loads(text)
        lines = found.setdefault(row["sweep"], {})
        lines.setdefault(row["line"], {})[row["x"]] = row["steps_per_second"]
    return found


def table() -> str:
    """What is known, as markdown."""
    rows = ["| sweep | line | at | steps/s |", "|---|---|---|---|"]
    for sweep, lines in known().items():
        for line, values in lines.items():
            rows += [f"| {sweep} | {line} | {x:,} | {values[x]:,.0f} |" for x in sorted(values)]
    return "\n".join(rows)


def draw() -> None:
    """One picture, a sweep beside the other."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit(f"not drawn: pip install matplotlib, then {sys.argv[0]} --draw") from None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "sherd"  # the same picture for the same numbers
    from matplotlib import pyplot

    sweeps = known()
    figure, axes = pyplot.subplots(1, len(sweeps), figsize=(4 * len(sweeps), 3.2), layout="constrained")
    for axis, (sweep, lines) in zip([axes] if len(sweeps) == 1 else axes, sweeps.items()):
        for line, values in lines.items():
            xs = sorted(values)
            axis.plot(xs, [values[x] for x in xs], marker="o", label=line)
        axis.set(xscale="log", yscale="log", xlabel=sweep, ylabel="steps/s")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.savefig(IMAGE, metadata={"Date": None})


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="*", help="beginnings of their names; none: all")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(measure_here(Point(**json.loads(given.one))))
        return
    if not given.draw:
        for point in points():
            if not given.sweeps or point.sweep.startswith(tuple(given.sweeps)):
                measure(point)
    if not known():
        raise SystemExit(f"nothing was measured yet: {RESULTS} has no rows")
    print(table())
    draw()


if __name__ == "__main__":
    main()
