"""From docs/results/speed.jsonl to the tables: who is how fast, and how far it is to what the parts allow.

For each workload and peer the newest session counts. The limits are two: the simulator and the learner one
after the other, which is the best that one process can do, and the slower of the two, which is the best
that any number of processes can do that hide one behind the other.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from workloads import TITLES, WORKLOADS

Row = dict[str, Any]
LIMIT = "limit"
SPEED_HEAD = (
    "| workload | library | setting | steps/s: median | lowest..highest | Sherd is | "
    "seconds to the first update: at first, then | peak MB |\n|---|---|---|---|---|---|---|---|"
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
    """All rows that were ever measured."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def newest(rows: list[Row], workload: str, peer: str) -> list[Row]:
    """What the last session found that came to an end with this workload and peer."""
    mine = [row for row in rows if (row["workload"], row["peer"]) == (workload, peer)]
    sessions = {row["session"]: [one for one in mine if one["session"] == row["session"]] for row in mine}
    # One that was stopped during its trials says nothing; one whose trials all failed does.
    ended = [
        name
        for name, its in sessions.items()
        if any(row["repeat"] for row in its) or all("error" in row for row in its)
    ]
    return sessions[max(ended)] if ended else []


def measured(rows: list[Row]) -> list[Row]:
    """The repeats that ended well, trials left out."""
    return [row for row in rows if row["repeat"] and "error" not in row]


def median(rows: list[Row]) -> float | None:
    """Of the repeats' steps per second."""
    rates = [row["steps_per_second"] for row in measured(rows)]
    return statistics.median(rates) if rates else None


def speed_table(rows: list[Row]) -> str:
    """One line for each workload and peer."""
    lines = [SPEED_HEAD]
    for workload in WORKLOADS:
        sherd = median(newest(rows, workload, "sherd"))
        first = True
        for peer, title in TITLES.items():
            if found := newest(rows, workload, peer):
                name = f"{workload}: {WORKLOADS[workload].title}" if first else ""
                lines.append(f"| {name} | {title}{_version(found)} | {_cells(found, sherd)} |")
                first = False
    return "\n".join(lines)


def _version(found: list[Row]) -> str:
    """Of the library: what a script names after Python."""
    told = [list(row["versions"].values()) for row in measured(found)]
    return f" {told[-1][1]}" if told and len(told[-1]) > 1 else ""


def _cells(found: list[Row], sherd: float | None) -> str:
    rate, good = median(found), measured(found)
    if rate is None:
        errors = [row["error"] for row in found if "error" in row]
        return f"{_plain(errors[-1] if errors else 'not measured')} | | | | |"
    setting, rates = good[-1]["setting"], [row["steps_per_second"] for row in good]
    same = [row for row in found if row["setting"] == setting and "error" not in row]
    start = f"{same[0]['first_update_seconds']:.1f}"
    if len(same) > 1:
        start += f", {statistics.median(row['first_update_seconds'] for row in same[1:]):.1f}"
    peaks = [row["peak_mb"] for row in good if row["peak_mb"]]
    ratio = f"{sherd / rate:.1f}x" if sherd and good[0]["peer"] != "sherd" else ""
    failed = sum("error" in row for row in found if row["repeat"])
    spread = f"{min(rates):,.0f}..{max(rates):,.0f}" + (f", {failed} failed" if failed else "")
    peak = f"{statistics.median(peaks):,.0f}" if peaks else ""
    return f"{setting} | {rate:,.0f} | {spread} | {ratio} | {start} | {peak}"


def _plain(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def limits(rows: list[Row], workload: str) -> tuple[float, float] | None:
    """Medians of the simulator alone and of the learner alone, each in its fastest setting."""
    found = measured(newest(rows, workload, LIMIT))
    best: list[float] = []
    for part in ("part=simulator", "part=learner"):
        settings = {row["setting"] for row in found if row["setting"].startswith(part)}
        rates = [median([row for row in found if row["setting"] == setting]) for setting in settings]
        if not rates:
            return None
        best.append(max(filter(None, rates)))
    return best[0], best[1]


def limits_table(rows: list[Row]) -> str:
    """One line for each workload."""
    lines = [LIMITS_HEAD]
    for workload in WORKLOADS:
        both, sherd = limits(rows, workload), median(newest(rows, workload, "sherd"))
        if not both:
            continue
        after, over = 1 / sum(1 / rate for rate in both), min(both)
        numbers = " | ".join(f"{rate:,.0f}" for rate in (*both, after, over))
        shares = f"{sherd:,.0f} | {sherd / after:.0%} | {sherd / over:.0%}" if sherd else "| |"
        lines.append(f"| {workload} | {numbers} | {shares} |")
    return "\n".join(lines)


def short_table(rows: list[Row]) -> str:
    """For the README: Sherd beside the fastest of the others."""
    lines = [SHORT_HEAD]
    for workload, work in WORKLOADS.items():
        rates = {peer: median(newest(rows, workload, peer)) for peer in TITLES}
        sherd, both = rates.pop("sherd"), limits(rows, workload)
        known = {peer: rate for peer, rate in rates.items() if rate}
        if not sherd:
            continue
        best = max(known, key=lambda peer: known[peer], default="")
        other = f"{TITLES[best]} | {known[best]:,.0f} | {sherd / known[best]:.1f}x" if best else "| |"
        share = f"{sherd / min(both):.0%}" if both else ""
        lines.append(f"| {work.title} | {sherd:,.0f} | {other} | {share} |")
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
