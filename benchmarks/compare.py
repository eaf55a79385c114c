"""How fast is Sherd beside other libraries, on this machine, in one session? (`make bench`)

    python benchmarks/compare.py                        everything: an hour or more
    python benchmarks/compare.py --quick                one repeat, no trials: a first look in half of that
    python benchmarks/compare.py cartpole-8 slow        some workloads
    python benchmarks/compare.py pong --peers sherd sb3
    python benchmarks/compare.py --table --write        only put what is known into the pages

Each library gets a virtual environment of its own, once. For each workload, every library tries its
settings briefly; the fastest setting of each is then measured several times, one process at a time, in
alternating order, so that a machine that gets slower or faster does so for all. What the simulator and the
learner make alone takes turns with the libraries in the same way, in every setting: a limit is the best of
its settings' medians, not what a short trial took for the best. A library that makes less than half of what
the fastest of the others makes is measured once. A run counts once it has learnt and warmed up. Each is one
line of docs/results/speed.jsonl, failures too. Run it with nothing else busy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import speed_table as tables
from environments import HOME, Environment, prepare
from processes import Ended, run
from workloads import SETTINGS, TITLES, WORKLOADS

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = ROOT / "docs" / "results" / "speed.jsonl"
QUICK = {"repeats": 1, "seconds": 3.0}


def machine() -> str:
    """What this is measured on."""
    model, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{os.cpu_count()} cores of {model}, no GPU used"


def why(ended: Ended, limit: float) -> str:
    """A failed run's reason in one line."""
    if ended.code is None:
        return f"stopped after {limit:.0f} s"
    lines = [line.strip() for line in ended.errors.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "error" in line] or lines or ["it said nothing"]
    return f"exit code {ended.code}: {told[-1]}"[:300]


def far_behind(peer: str, rates: dict[str, float], repeat: int) -> bool:
    """Whether a library was so slow in the first round that no repeat can make it the fastest other one.

    >>> rates = {"sherd": 90.0, "sb3": 10.0, "rllib": 4.0, "part=learner devices=1": 99.0}
    >>> far_behind("rllib", rates, 2), far_behind("sb3", rates, 2)
    (True, False)
    """
    others = [rate for name, rate in rates.items() if name in TITLES and name != "sherd"]
    behind = rates.get(peer, 0.0) < max(others, default=0.0) / 2
    return repeat > 1 and peer in TITLES and peer != "sherd" and behind


class Session:
    """One measuring session: runs commands, keeps rows."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.machine = given, machine()
        self.name = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        # Libraries keep what they compiled. An empty folder makes the first run of a setting a first run
        # indeed.
        self.cache = tempfile.TemporaryDirectory(prefix="bench-")
        self.made = 0

    def keep(self, row: dict[str, Any]) -> dict[str, Any]:
        """Append a row to the results, and say so."""
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row |= {"machine": self.machine, "session": self.name, "date": date}
        self.given.results.parent.mkdir(parents=True, exist_ok=True)
        with self.given.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.made += 1
        rate = row.get("steps_per_second")
        found = f"{rate:,.0f} steps/s" if rate is not None else row["error"]
        kind = f"repeat {row['repeat']}" if row["repeat"] else "trial"
        told = f"{self.made:3d}  {row['workload']}, {row['peer']}, {kind}, {row['setting']}: {found}"
        print(told, file=sys.stderr, flush=True)
        return row

    def measure(
        self, workload: str, peer: str, python: Path, setting: str, repeat: int, seconds: float
    ) -> dict[str, Any]:
        """One run of one script; a row, with its reason if it failed."""
        name = "limits" if peer == tables.LIMIT else peer
        command = [*command_of(workload, name, python, setting), "--seconds", str(seconds)]
        variables = os.environ | {
            "BENCH_STARTED": str(time.time()),
            "XDG_CACHE_HOME": self.cache.name,
            "TMPDIR": self.cache.name,
        }
        # Not here: PufferLib leaves a link to itself wherever it is imported.
        ended = run(command, self.given.limit, variables, self.cache.name)
        row: dict[str, Any] = {"workload": workload, "peer": peer, "setting": setting, "repeat": repeat}
        try:
            said = json.loads(ended.output.splitlines()[-1])
            row |= {name: said[name] for name in ("steps_per_second", "first_update_seconds", "versions")}
            row["peak_mb"] = ended.peak_mb and round(ended.peak_mb)
        except (IndexError, ValueError, KeyError, TypeError):
            row["error"] = why(ended, self.given.limit)
        return self.keep(row)

    def choose(self, workload: str, peer: str, python: Path, settings: list[str]) -> str | None:
        """The setting to measure: the fastest in a short trial; None if every one of them failed."""
        if len(settings) == 1 or self.given.quick:
            return settings[0]
        seconds = self.given.trial_seconds * WORKLOADS[workload].longer
        tried = [self.measure(workload, peer, python, setting, 0, seconds) for setting in settings]
        best = max(tried, key=lambda row: row.get("steps_per_second", 0.0))
        return None if "error" in best else str(best["setting"])

    def contenders(self, workload: str, pythons: dict[str, Environment]) -> dict[str, tuple[str, Path, str]]:
        """Who takes turns: name -> peer, interpreter, setting."""
        known = {peer: (peer, SETTINGS[workload].get(peer, []), found) for peer, found in pythons.items()}
        if not self.given.no_limits:
            here, alone = Environment(Path(sys.executable)), limit_settings(workload)
            known |= {setting: (tables.LIMIT, [setting], here) for setting in alone}
        chosen = {}
        for name, (peer, settings, environment) in known.items():
            if not settings:
                continue
            if environment.python is None:
                reason = f"does not install: {environment.reason}"
                self.keep({"workload": workload, "peer": peer, "setting": "", "repeat": 0, "error": reason})
            elif (setting := self.choose(workload, peer, environment.python, settings)) is not None:
                chosen[name] = peer, environment.python, setting
        return chosen

    def compare(self, workload: str, pythons: dict[str, Environment]) -> None:
        """All peers on one workload, and its parts."""
        chosen, seconds = self.contenders(workload, pythons), self.given.seconds * WORKLOADS[workload].longer
        rates: dict[str, float] = {}
        for repeat in range(1, self.given.repeats + 1):
            for name in list(chosen) if repeat % 2 else list(reversed(chosen)):
                peer, python, setting = chosen[name]
                if not far_behind(name, rates, repeat):
                    row = self.measure(workload, peer, python, setting, repeat, seconds)
                    rates[name] = max(rates.get(name, 0.0), row.get("steps_per_second", 0.0))


def command_of(workload: str, name: str, python: Path, setting: str) -> list[str]:
    """How a library's script is called."""
    script = HERE / "peers" / f"run_{name.replace('-', '_')}.py"
    return [str(python), str(script), workload, *setting.split()]


def limit_settings(workload: str) -> list[str]:
    """How simulator and learner are measured alone."""
    simulators = [f"part=simulator processes={count}" for count in WORKLOADS[workload].processes]
    learners = [f"part=learner devices={count}" for count in (1, 2)]
    # Almost all that SAC computes are products; how many fit into a second is a limit of its own.
    products = [f"part=products processes={count}" for count in (1, 2)] if workload == "sac" else []
    return simulators + learners + products


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; none: all")
    parser.add_argument("--peers", nargs="+", choices=TITLES, default=list(TITLES), help="which libraries")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each library (default: 3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="what is measured of a run (default: 4)")
    parser.add_argument("--trial-seconds", type=float, default=2.0, help="the same of a trial (default: 2)")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds until a run is stopped")
    parser.add_argument(
        "--quick", action="store_true", help="one repeat of 3 s, each library's first setting"
    )
    parser.add_argument("--no-limits", action="store_true", help="leave out what the parts allow")
    parser.add_argument(
        "--home", type=Path, default=HOME, help="where the environments are (default: .bench)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where rows are kept")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="put the tables into README and docs")
    given = parser.parse_args()
    unknown = [name for name in given.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    for name, value in QUICK.items() if given.quick else ():
        setattr(given, name, value)
    return given


def measure_all(given: argparse.Namespace) -> None:
    """Everything that was asked for, one after another."""
    names = given.workloads or list(WORKLOADS)
    needed = [peer for peer in given.peers if any(peer in SETTINGS[name] for name in names)]
    session, pythons = Session(given), {peer: prepare(peer, given.home) for peer in needed}
    for name in names:
        session.compare(name, pythons)


def main() -> None:
    """Measure, print, and write if asked to."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the present run is ended with this one
    if not given.table:
        measure_all(given)
    rows = tables.read(given.results)
    if not rows:
        raise SystemExit(f"nothing was measured yet: {given.results} has no rows")
    about = tables.about(rows)
    print(f"{about}\n\n{tables.speed_table(rows)}\n\n{tables.limits_table(rows)}")
    if given.write:
        page = ROOT / "docs" / "benchmarks.md"
        tables.write_between(page, "speed", f"{about}\n\n{tables.speed_table(rows)}")
        tables.write_between(page, "limits", tables.limits_table(rows))
        tables.write_between(ROOT / "README.md", "speed-table", tables.short_table(rows))


if __name__ == "__main__":
    main()
