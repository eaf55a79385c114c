"""From docs/results/turns.jsonl to the tables: who is how fast, and how far it is to what the parts allow.

For each workload and library the newest session counts, and in it the best setting. Libraries are compared
round by round. The limits are two: the simulator and the learner one after the other, which is the best that
one process can do, and the slower of the two, which is the best that any number of processes can do that
hide one behind the other.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from workloads import TITLES, WORKLOADS

Row = dict[str, Any]
LIMIT = "limits"
SPEED_HEAD = (
    "| workload | library | setting | rounds | steps/s: median | a quarter..three quarters | Sherd is | "
    "seconds to the first update | peak MB |\n|---|---|---|---|---|---|---|---|---|"
)
LIMITS_HEAD = (
    "| workload | simulator alone | acting and learning alone | one after the other | overlapped | Sherd | "
    "of one after the other | of overlapped |\n|---|---|---|---|---|---|---|---|"
)
SHORT_HEAD = (
    "| workload | Sherd, steps/s | fastest other library | steps/s | Sherd is | of what its parts allow |\n"
    "|---|---|---|---|---|---|"
)


def read(file: Path) -> list[Row]:
    """All rows that were measured in sessions; those of turns.py, which has none, are left out."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [row for row in rows if "session" in row]


def newest(rows: list[Row], workload: str, peer: str) -> list[Row]:
    """What the last session with this workload and peer found."""
    mine = [row for row in rows if (row["workload"], row["peer"]) == (workload, peer)]
    last = max((row["session"] for row in mine), default="")
    return [row for row in mine if row["session"] == last]


def best(rows: list[Row]) -> Row | None:
    """The setting with the highest median, of those that had most rounds."""
    good = [row for row in rows if row.get("steps_per_second")]
    most = max((len(row["steps_per_second"]) for row in good), default=0)
    stayed = [row for row in good if len(row["steps_per_second"]) == most]
    return max(stayed, key=median, default=None)


def median(row: Row) -> float:
    """Of the rounds' steps per second."""
    return statistics.median(row["steps_per_second"])


def ratios(one: Row, other: Row) -> list[float]:
    """Round by round, if both were measured in the same session; else of the medians.

    >>> one = {"session": "a", "steps_per_second": [10.0, 30.0]}
    >>> ratios(one, one | {"steps_per_second": [5.0]}), ratios(one, one | {"session": "b"})
    ([2.0], [1.0])
    """
    if one["session"] != other["session"]:
        return [median(one) / median(other)]
    return [a / b for a, b in zip(one["steps_per_second"], other["steps_per_second"])]


def quarters(numbers: list[float]) -> tuple[float, float]:
    """Between which two values half of them lie.

    >>> quarters([1.0]), quarters([1.0, 2.0, 3.0])
    ((1.0, 1.0), (1.0, 3.0))
    """
    if len(numbers) < 3:
        return min(numbers), max(numbers)
    low, _, high = statistics.quantiles(numbers, n=4)
    return low, high


def speed_table(rows: list[Row]) -> str:
    """One line for each workload and peer."""
    lines = [SPEED_HEAD]
    for workload in WORKLOADS:
        sherd, first = best(newest(rows, workload, "sherd")), True
        for peer, title in TITLES.items():
            if found := newest(rows, workload, peer):
                name = f"{workload}: {WORKLOADS[workload].title}" if first else ""
                lines.append(f"| {name} | {title}{_version(found)} | {_cells(found, sherd)} |")
                first = False
    return "\n".join(lines)


def _version(found: list[Row]) -> str:
    """Of the library: what a script names after Python."""
    row = best(found)
    told = list(row["versions"].values()) if row else []
    return f" {told[1]}" if len(told) > 1 else ""


def _cells(found: list[Row], sherd: Row | None) -> str:
    row = best(found)
    if row is None:
        errors = [one["error"] for one in found if "error" in one]
        return f"{_plain(errors[-1] if errors else 'not measured')} | | | | | |"
    rates, ratio = row["steps_per_second"], ""
    if sherd and row["peer"] != "sherd":
        beside = ratios(sherd, row)
        ratio = "{:.2f}x ({:.2f}..{:.2f})".format(statistics.median(beside), *quarters(beside))
    spread = "{:,.0f}..{:,.0f}".format(*quarters(rates))
    numbers = f"{len(rates)} | {median(row):,.0f} | {spread} | {ratio}"
    return f"{row['setting']} | {numbers} | {row['first_update_seconds']:.1f} | {row['peak_mb'] or ''}"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def limits(rows: list[Row], workload: str) -> tuple[Row, Row] | None:
    """The simulator alone and the learner alone, each in its fastest setting."""
    found = newest(rows, workload, LIMIT)
    simulator, learner = (
        best([row for row in found if row["setting"].startswith(part)])
        for part in ("part=simulator", "part=learner")
    )
    return (simulator, learner) if simulator and learner else None


def of_overlapped(sherd: Row, both: tuple[Row, Row]) -> float:
    """The share that Sherd makes of the slower part, round by round."""
    return statistics.median(ratios(sherd, min(both, key=median)))


def limits_table(rows: list[Row]) -> str:
    """One line for each workload."""
    lines = [LIMITS_HEAD]
    for workload in WORKLOADS:
        both, sherd = limits(rows, workload), best(newest(rows, workload, "sherd"))
        if not both or not sherd:
            continue
        alone = [median(row) for row in both]
        after, over = 1 / sum(1 / rate for rate in alone), min(alone)
        numbers = " | ".join(f"{rate:,.0f}" for rate in (*alone, after, over, median(sherd)))
        share = f"{median(sherd) / after:.0%} | {of_overlapped(sherd, both):.0%}"
        lines.append(f"| {workload} | {numbers} | {share} |")
    return "\n".join(lines)


def short_table(rows: list[Row]) -> str:
    """For the README: Sherd beside the fastest of the others."""
    lines = [SHORT_HEAD]
    for workload, work in WORKLOADS.items():
        sherd, both = best(newest(rows, workload, "sherd")), limits(rows, workload)
        if not sherd:
            continue
        others = [best(newest(rows, workload, peer)) for peer in TITLES if peer != "sherd"]
        least = min((o for o in others if o), key=lambda o: statistics.median(ratios(sherd, o)), default=None)
        other = "| |"
        if least:
            times = statistics.median(ratios(sherd, least))
            other = f"{TITLES[least['peer']]} | {median(least):,.0f} | {times:.1f}x"
        share = f"{of_overlapped(sherd, both):.0%}" if both else ""
        lines.append(f"| {work.title} | {median(sherd):,.0f} | {other} | {share} |")
    return "\n".join(lines)


def about(rows: list[Row]) -> str:
    """Where and when: the machines and the days of what the tables show."""
    shown = [
        row for workload in WORKLOADS for peer in (*TITLES, LIMIT) for row in newest(rows, workload, peer)
    ]
    machines = sorted({row["machine"] for row in shown})
    days = sorted({row["date"][:10] for row in shown})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{'; '.join(machines)}. Measured {when}."


def write_between(page: Path, marker: str, text: str) -> None:
    """Replace what stands between a marker's two comments."""
    content = page.read_text()
    if f"<!-- {marker} -->" not in content:
        return
    before, _, rest = content.partition(f"<!-- {marker} -->")
    _, _, after = rest.partition(f"<!-- /{marker} -->")
    page.write_text(f"{before}<!-- {marker} -->\n{text}\n<!-- /{marker} -->{after}")
