"""How fast is Sherd beside other libraries, on this machine, in one session? (`make bench`)

    python benchmarks/compare.py                        everything: an hour or more
    python benchmarks/compare.py --quick                three rounds, one setting of each: a first look
    python benchmarks/compare.py cartpole-8 slow        some workloads
    python benchmarks/compare.py pong --peers sherd sb3
    python benchmarks/compare.py --table --write        only put what is known into the pages

Each library gets a virtual environment of its own, once. For each workload every library is started in all
its settings, one after the other, and learns until it has warmed up; so are the workload's parts, the
simulator alone and the learner alone. Then they take turns of a few seconds (contenders.py says how and why).
After two rounds whoever cannot be its library's fastest setting any more is ended, and so are libraries that
make less than half of what the fastest of the others makes. The rest goes on to the end. A library's result
is the median of its best setting, and what Sherd is beside it the median of the rounds' ratios.

Each setting is one line of docs/results/turns.jsonl, failures too. All contenders of a workload are in memory
at once: 23 GB for the slow simulator. Run it with nothing else busy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import speed_table as tables
from contenders import LIMITS, ROOT, Contender, Failed, machine, one_round, say
from environments import HOME, Environment, prepare
from processes import remove_unused, shared_files
from workloads import SETTINGS, TITLES, WORKLOADS

RESULTS = ROOT / "docs" / "results" / "turns.jsonl"
TRIAL_ROUNDS = 2
NEARLY = 0.85  # a setting that made so much of its library's fastest one may be the faster of the two
QUICK_ROUNDS = 3


def to_end(rates: dict[str, dict[str, float]]) -> set[tuple[str, str]]:
    """Whose turns are over after the trial: group -> setting -> rate to (group, setting).

    A group is a library, or a part of the workload.

    >>> tried = {"sherd": {"a": 90.0, "b": 30.0, "c": 85.0}, "sb3": {"": 20.0}, "rllib": {"": 9.0}}
    >>> sorted(to_end(tried | {"part=learner": {"x": 5.0}}))
    [('rllib', ''), ('sherd', 'b')]
    """
    best = {group: max(settings.values()) for group, settings in rates.items()}
    others = max((best[group] for group in best if group in TITLES and group != "sherd"), default=0.0)
    ended = set()
    for group, settings in rates.items():
        behind = group in TITLES and group != "sherd" and best[group] < others / 2
        ended |= {(group, s) for s, rate in settings.items() if behind or rate < NEARLY * best[group]}
    return ended


def group_of(one: Contender) -> str:
    """The library, or the part of a workload."""
    return one.setting.split()[0] if one.peer == LIMITS else one.peer


def limit_settings(workload: str) -> list[str]:
    """How simulator and learner are measured alone."""
    simulators = [f"part=simulator processes={count}" for count in WORKLOADS[workload].processes]
    learners = [f"part=learner devices={count}" for count in (1, 2)]
    # Almost all that SAC computes are products; how many fit into a second is a limit of its own.
    makers = [f"part=products processes={count} by={by}" for count in (1, 2) for by in ("xla", "openblas")]
    return simulators + learners + (makers if workload == "sac" else [])


class Session:
    """One measuring session: lets contenders take turns, keeps rows."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.about = {"machine": machine(), "session": now}

    def keep(self, workload: str, peer: str, setting: str, found: dict[str, Any]) -> None:
        """Append a row to the results."""
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        row = {"workload": workload, "peer": peer, "setting": setting, **found, **self.about, "date": date}
        self.given.results.parent.mkdir(parents=True, exist_ok=True)
        with self.given.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if "error" in found:
            say(f"  {peer} {setting}: {found['error']}")

    def end(self, workload: str, one: Contender, error: str = "") -> None:
        """End a contender and keep what it made."""
        one.end()
        found = {
            "steps_per_second": [round(rate, 1) for rate in one.rates],
            "first_update_seconds": round(one.first_update_seconds, 2),
            "peak_mb": one.peak_mb,
            "versions": one.versions,
        }
        self.keep(workload, one.peer, one.setting, {"error": error} if error else found)

    def wanted(self, workload: str, pythons: dict[str, Environment]) -> list[tuple[str, str, Path]]:
        """Who is to be started: library, setting, interpreter."""
        found = []
        for peer, environment in pythons.items():
            settings = SETTINGS[workload].get(peer, [])
            if settings and environment.python is None:
                self.keep(workload, peer, "", {"error": f"does not install: {environment.reason}"})
            elif environment.python is not None:
                first = settings[:1] if self.given.quick else settings
                found += [(peer, setting, environment.python) for setting in first]
        if not self.given.no_limits:
            found += [(LIMITS, setting, Path(sys.executable)) for setting in limit_settings(workload)]
        return found

    def compare(self, workload: str, pythons: dict[str, Environment]) -> None:
        """All libraries on one workload, and its parts."""
        say(f"{workload}: {WORKLOADS[workload].title}")
        before, alive = shared_files(), list[Contender]()
        with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
            try:
                for peer, setting, python in self.wanted(workload, pythons):
                    alive.append(Contender(workload, peer, setting, python, Path(folder)))
                    try:
                        alive[-1].warm_up(self.given.limit)
                        say(f"  ready: {alive[-1].name}, after {alive[-1].first_update_seconds:.1f} s")
                    except Failed as reason:
                        self.end(workload, alive.pop(), str(reason))
                self._rounds(workload, alive)
            finally:
                while alive:  # also if this was broken off: what they made so far is kept
                    one = alive.pop(0)
                    self.end(workload, one, "" if one.rates else "broken off before its first turn")
                remove_unused(shared_files() - before)

    def _rounds(self, workload: str, alive: list[Contender]) -> None:
        seconds = self.given.seconds * WORKLOADS[workload].longer
        for number in range(self.given.rounds):
            failed = one_round(number, alive, seconds, self.given.limit)
            over = self._over(alive) if number + 1 == TRIAL_ROUNDS else set()
            for one in list(alive):
                if one.name in failed or (group_of(one), one.setting) in over:
                    alive.remove(one)
                    self.end(workload, one, failed.get(one.name, ""))

    def _over(self, alive: list[Contender]) -> set[tuple[str, str]]:
        rates: dict[str, dict[str, float]] = {}
        for one in alive:
            rates.setdefault(group_of(one), {})[one.setting] = statistics.mean(one.rates or [0.0])
        return to_end(rates)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", help=f"of {', '.join(WORKLOADS)}; none: all")
    parser.add_argument("--peers", nargs="+", choices=TITLES, default=list(TITLES), help="which libraries")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each (default: 8)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (default: 2)")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds until an update must have come")
    parser.add_argument("--quick", action="store_true", help="three rounds, each library's first setting")
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
    if given.rounds < TRIAL_ROUNDS:
        parser.error(f"--rounds: at least {TRIAL_ROUNDS}")
    if given.quick:
        given.rounds = QUICK_ROUNDS
    return given


def measure_all(given: argparse.Namespace) -> None:
    """Everything that was asked for, one workload after another."""
    names = given.workloads or list(WORKLOADS)
    needed = [peer for peer in given.peers if any(peer in SETTINGS[name] for name in names)]
    session, pythons = Session(given), {peer: prepare(peer, given.home) for peer in needed}
    for name in names:
        session.compare(name, pythons)


def main() -> None:
    """Measure, print, and write if asked to."""
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all contenders are ended with this one
    if not given.table:
        try:
            measure_all(given)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
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
