"""How long cores have had nothing to do, whoever it was that gave them work before."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE, _WAITS_FOR_A_DISK = 4, 5  # words of a line that begins with the core's name


def idle_seconds(cores: Collection[int], stat: Path = _STAT) -> float | None:
    """Seconds that these cores have idled since the machine started; None where the system does not say.

    >>> idle_seconds((), _STAT) is None
    True
    """
    try:
        lines = [line.split() for line in stat.read_text().splitlines()]
    except OSError:  # not Linux
        return None
    names = {f"cpu{core}" for core in cores}
    ticks = sum(int(line[_IDLE]) + int(line[_WAITS_FOR_A_DISK]) for line in lines if line[0] in names)
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else None
