"""Who is faster, if the machine's own speed changes from minute to minute?

    python benchmarks/turns.py sac sherd sbx
    python benchmarks/turns.py slow sherd "limits part=simulator processes=2"

compare.py runs one process after another, each for half a minute with its start: where others share the
machine, that may be the minute in which it has half of a core. Here all contenders live as long as the
measurement and take turns of a few seconds; whoever has no turn is stopped (SIGSTOP), with all processes that
it started. Each round compares what was made within seconds of each other, and the median of the rounds'
ratios is what counts. A turn lasts longer if two seconds are less than some iterations. A contender is a
library and its setting; without one, the first of workloads.py.

Each contender is one line of docs/results/turns.jsonl, with its rate in every round. All of them are in
memory at once. Run it with nothing else busy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import speed_table as tables
from compare import ROOT, command_of, machine
from environments import HOME, prepare
from processes import Family, remove_unused, shared_files
from workloads import SETTINGS, WORKLOADS

Row = tables.Row
RESULTS = ROOT / "docs" / "results" / "turns.jsonl"
LIMITS = "limits"
TOGETHER = 0.005  # seconds between marks of the same moment, as in peers/common.py
SETTLE = 0.3  # seconds at the beginning of a turn that do not count: whoever slept has overslept


def rate_between(diaries: list[list[tuple[float, float]]], begin: float, end: float) -> float:
    """Steps per second of all processes of a contender, from the marks that fall into a turn.

    Iterations may be reported several at a time. What came together with the first mark was made before it,
    and what came together with the last is perhaps not written yet, so that the one before it is the end.

    >>> one = [(0.0, 0.0), (0.996, 10.0), (1.0, 20.0), (2.0, 40.0), (2.5, 50.0), (9.0, 60.0)]
    >>> rate_between([one, [(1.0, 0.0), (2.0, 5.0), (3.0, 10.0)], []], 0.5, 3.0)
    25.0
    """
    total = 0.0
    for marks in diaries:
        inside = [mark for mark in marks if begin <= mark[0] <= end][:-1]
        while len(inside) > 1 and inside[1][0] - inside[0][0] < TOGETHER:
            inside.pop(0)
        if len(inside) > 1:
            total += (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
    return total


class Contender:
    """A library at work, which can be stopped and resumed."""

    def __init__(self, workload: str, words: str, folder: Path, home: Path) -> None:
        self.peer, _, setting = words.partition(" ")
        self.setting = setting or (SETTINGS[workload][self.peer][0] if self.peer != LIMITS else "")
        self.rates: list[float] = []
        self._diaries = Path(tempfile.mkdtemp(dir=folder))
        self._errors = self._diaries.with_suffix(".log").open("w+")
        own = Path(sys.executable)
        python = own if self.peer in ("sherd", LIMITS) else prepare(self.peer, home).python
        if python is None:
            raise SystemExit(f"{self.peer} does not install; `python benchmarks/environments.py` says why")
        cached = {"XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder)}
        variables = os.environ | cached | {"BENCH_MARKS": str(self._diaries)}
        # A session of its own: Ctrl-C is for this script, which then ends all of them.
        self._process = subprocess.Popen(
            command_of(workload, self.peer, python, self.setting),
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            stdin=subprocess.DEVNULL,
            env=variables,
            cwd=folder,
            start_new_session=True,
        )
        self._family = Family(self._process.pid)

    @property
    def name(self) -> str:
        return f"{self.peer} {self.setting}"

    def warm_up(self, seconds: float, limit: float) -> None:
        """Let it learn for so long after its first update, then stop it."""
        until, first = time.monotonic() + limit, None
        while first is None or time.monotonic() - first < seconds:
            if self._process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{self.name} made no update:\n{self._said()}")
            first = first or (time.monotonic() if any(self._marks()) else None)
            time.sleep(0.1)
        self._family.sample()
        self._family.signal(signal.SIGSTOP)

    def turn(self, seconds: float, limit: float) -> None:
        """Let it work for so long, or until it has made some iterations, and note how fast it was."""
        self._family.signal(signal.SIGCONT)
        begin, rate = time.perf_counter() + SETTLE, 0.0
        time.sleep(SETTLE)
        while not rate:
            time.sleep(seconds)
            if self._process.poll() is not None or time.perf_counter() - begin > limit:
                raise SystemExit(f"{self.name} does not go on:\n{self._said()}")
            rate = rate_between(self._marks(), begin, time.perf_counter())
        self.rates.append(rate)
        self._family.sample()
        self._family.signal(signal.SIGSTOP)

    def end(self) -> None:
        """End all of its processes."""
        self._family.sample()
        self._family.end()
        self._process.wait()
        self._errors.close()

    def _marks(self) -> list[list[tuple[float, float]]]:
        """What each process has noted: time and steps; a line that is being written is left out."""
        texts = [file.read_text().rpartition("\n")[0] for file in self._diaries.iterdir()]
        return [[(float(t), float(n)) for t, n in map(str.split, text.splitlines())] for text in texts]

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]


def newest(rows: list[Row], workload: str) -> list[Row]:
    """What was measured last of a workload, in the order of the contenders."""
    mine = [row for row in rows if row["workload"] == workload]
    return [row for row in mine if row["date"] == mine[-1]["date"]]


def known_workloads(rows: list[Row]) -> list[str]:
    """Those that were measured, in their order."""
    return [name for name in WORKLOADS if any(row["workload"] == name for row in rows)]


def table(rows: list[Row], names: Iterable[str]) -> str:
    """Of each workload the first contender beside the others, round by round."""
    head = "| workload | contender | rounds | steps/s: median | a quarter..three quarters | the first is |"
    lines = [head, "|---|---|---|---|---|---|"]
    for workload in names:
        for place, row in enumerate(found := newest(rows, workload)):
            rates, first = row["steps_per_second"], found[0]["steps_per_second"]
            low, middle, high = statistics.quantiles(rates, n=4)
            ratios = statistics.quantiles([ours / theirs for ours, theirs in zip(first, rates)], n=4)
            ratio = "{1:.2f}x ({0:.2f}..{2:.2f})".format(*ratios) if place else ""
            about = f"{row['peer']}, {row['setting']}".removesuffix(", ")
            title, rounds = ("", "") if place else (workload, str(len(rates)))
            lines.append(
                f"| {title} | {about} | {rounds} | {middle:,.0f} | {low:,.0f}..{high:,.0f} | {ratio} |"
            )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument(
        "contenders", nargs="+", help='a library, or "LIBRARY KEY=VALUE ..."; also "limits ..."'
    )
    parser.add_argument("--rounds", type=int, default=12, help="turns of each (default: 12)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (default: 2)")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds until an update must have come")
    parser.add_argument(
        "--home", type=Path, default=HOME, help="where the environments are (default: .bench)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where rows are kept")
    parser.add_argument("--write", action="store_true", help="put the table of all workloads into the docs")
    given = parser.parse_args()
    for words in given.contenders:
        name, _, setting = words.partition(" ")
        known = [*SETTINGS[given.workload], LIMITS]
        if name not in known or (name == LIMITS and not setting):
            parser.error(
                f"{words!r} is no contender of {given.workload}; there are {', '.join(known)} part=..."
            )
    if given.rounds < 2:
        parser.error("--rounds: at least 2")
    return given


def keep(given: argparse.Namespace, contenders: list[Contender]) -> None:
    """Append a row for each contender to the results."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    given.results.parent.mkdir(parents=True, exist_ok=True)
    with given.results.open("a") as file:
        for one in contenders:
            row = {"workload": given.workload, "peer": one.peer, "setting": one.setting}
            rates = {"steps_per_second": [round(rate, 1) for rate in one.rates]}
            about = {"seconds": given.seconds, "machine": machine(), "date": date}
            file.write(json.dumps(row | rates | about) + "\n")


def main() -> None:
    """Start all, let them take turns, say who is faster."""
    given, before = arguments(), shared_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    contenders: list[Contender] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for words in given.contenders:
                contenders.append(Contender(given.workload, words, Path(folder), given.home))
                contenders[-1].warm_up(1.0, given.limit)
                print(f"ready: {contenders[-1].name}", file=sys.stderr, flush=True)
            for number in range(given.rounds):
                for one in contenders if number % 2 == 0 else reversed(contenders):
                    one.turn(given.seconds, given.limit)
                rates = ", ".join(f"{one.peer} {one.rates[-1]:,.0f}" for one in contenders)
                print(f"{number + 1}/{given.rounds}  {rates}", file=sys.stderr, flush=True)
        finally:
            for one in contenders:
                one.end()
            remove_unused(shared_files() - before)
    keep(given, contenders)
    rows = tables.read(given.results)
    print(table(rows, [given.workload]))
    if given.write:
        tables.write_between(ROOT / "docs" / "benchmarks.md", "turns", table(rows, known_workloads(rows)))


if __name__ == "__main__":
    main()
