"""Some contenders of one workload, in settings of your own, beside each other.

    python benchmarks/turns.py sac sherd sbx
    python benchmarks/turns.py slow sherd "sherd policy=Single" "limits part=simulator processes=2"

A contender is a library and its setting; without one, the first of workloads.py. They take turns as in
compare.py (contenders.py says how and why), but all of them do to the end. The first is compared with each
of the others, round by round. Nothing is kept unless --results names a file. Run it with nothing else busy.
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

from contenders import LIMITS, Contender, Failed, machine, one_round, say
from environments import HOME, prepare
from processes import remove_unused, shared_files
from workloads import SETTINGS, WORKLOADS

HEAD = (
    "| contender | rounds | steps/s: median | a quarter..three quarters | the first is |\n"
    "|---|---|---|---|---|"
)


def table(contenders: list[Contender]) -> str:
    """The first contender beside the others."""
    lines = [HEAD]
    for place, one in enumerate(contenders):
        low, middle, high = statistics.quantiles(one.rates, n=4)
        ratios = [ours / theirs for ours, theirs in zip(contenders[0].rates, one.rates)]
        ratio = "{1:.2f}x ({0:.2f}..{2:.2f})".format(*statistics.quantiles(ratios, n=4)) if place else ""
        spread = f"{middle:,.0f} | {low:,.0f}..{high:,.0f}"
        lines.append(f"| {one.name} | {len(one.rates)} | {spread} | {ratio} |")
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
    parser.add_argument("--results", type=Path, help="a file to append a line for each contender to")
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


def start(given: argparse.Namespace, words: str, folder: Path) -> Contender:
    """A contender that has made its first update."""
    peer, _, setting = words.partition(" ")
    python = Path(sys.executable) if peer in ("sherd", LIMITS) else prepare(peer, given.home).python
    if python is None:
        raise SystemExit(f"{peer} does not install; `python benchmarks/environments.py` says why")
    return Contender(given.workload, peer, setting or SETTINGS[given.workload][peer][0], python, folder)


def keep(given: argparse.Namespace, contenders: list[Contender]) -> None:
    """Append a row for each contender to a file."""
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with given.results.open("a") as file:
        for one in contenders:
            row = {"workload": given.workload, "peer": one.peer, "setting": one.setting}
            rates = {"steps_per_second": [round(rate, 1) for rate in one.rates]}
            about = {"seconds": given.seconds, "machine": machine(), "date": date}
            file.write(json.dumps(row | rates | about) + "\n")


def measure(given: argparse.Namespace, contenders: list[Contender], folder: Path) -> None:
    """Start all, and let them take turns."""
    for words in given.contenders:
        contenders.append(start(given, words, folder))
        try:
            contenders[-1].warm_up(given.limit)
        except Failed as reason:
            raise SystemExit(f"{contenders[-1].name}: {reason}") from None
        say(f"ready: {contenders[-1].name}")
    for number in range(given.rounds):
        for name, reason in one_round(number, contenders, given.seconds, given.limit).items():
            raise SystemExit(f"{name}: {reason}")


def main() -> None:
    """Say who is faster; end all of them whatever happens."""
    given, before = arguments(), shared_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    contenders: list[Contender] = []
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        try:
            measure(given, contenders, Path(folder))
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            for one in contenders:
                one.end()
            remove_unused(shared_files() - before)
    if given.results:
        keep(given, contenders)
    print(table(contenders))


if __name__ == "__main__":
    main()
