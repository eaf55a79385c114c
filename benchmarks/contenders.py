"""Libraries at work that take turns: each is stopped (SIGSTOP) while another is measured.

Runs one after another compare minutes, not libraries, where a machine's own speed changes from minute to
minute: other people's work shares most machines. So all contenders of a workload live as long as its
measurement and take turns of a few seconds; whoever has no turn is stopped, with all processes that it
started. What was made within seconds of each other is compared, round by round.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from processes import Family

HERE = Path(__file__).parent
ROOT = HERE.parent
LIMITS = "limits"  # the parts of a workload, measured as if they were a library
TOGETHER = 0.005  # seconds between marks of the same moment, as in peers/common.py
SETTLE = 0.3  # seconds at the beginning of a turn that do not count: whoever slept has overslept
WARM_UP = 1.0  # seconds after the first update


class Failed(Exception):
    """A contender made no update, or ended."""


def machine() -> str:
    """What this is measured on."""
    model, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return f"{os.cpu_count()} cores of {model}, no GPU used"


def rate_between(diaries: list[list[tuple[float, float]]], begin: float, end: float) -> float:
    """Steps per second of all processes of a contender, from the marks that fall into a turn.

    Iterations may be reported several at a time. What came together with the first mark was made before it,
    and what came together with the last is perhaps not written yet (`Meter.mark` keeps it back until a later
    one comes), so that the one before it is the end.

    >>> one = [(0.0, 0.0), (0.996, 10.0), (1.0, 20.0), (2.0, 40.0), (2.5, 50.0), (9.0, 60.0)]
    >>> rate_between([one, [(1.0, 0.0), (2.0, 5.0), (3.0, 10.0)], []], 0.5, 3.0)
    25.0
    >>> quick = [(place * 0.004, place * 8.0) for place in range(1000)]
    >>> round(rate_between([quick], 1.0, 3.0))
    2000
    """
    total = 0.0
    for marks in diaries:
        inside = [mark for mark in marks if begin <= mark[0] <= end][:-1]
        first = inside[0][0] if inside else 0.0
        while len(inside) > 1 and inside[1][0] - first < TOGETHER:
            inside.pop(0)
        if len(inside) > 1:
            total += (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
    return total


def why(code: int | None, errors: str, limit: float) -> str:
    """The reason of a failure in one line.

    >>> why(None, "", 180.0), why(1, "Traceback\\nValueError: no such thing\\n", 180.0)
    ('no update within 180 s', 'exit code 1: ValueError: no such thing')
    """
    if code is None:
        return f"no update within {limit:.0f} s"
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "error" in line] or lines or ["it said nothing"]
    return f"exit code {code}: {told[-1]}"[:300]


class Contender:
    """A library at work, which can be stopped and resumed."""

    def __init__(self, workload: str, peer: str, setting: str, python: Path, folder: Path) -> None:
        self.peer, self.setting = peer, setting
        self.rates: list[float] = []
        self.first_update_seconds = 0.0
        self._diaries = Path(tempfile.mkdtemp(dir=folder))
        self._errors: IO[str] = self._diaries.with_suffix(".log").open("w+")
        script = HERE / "peers" / f"run_{peer.replace('-', '_')}.py"
        kept = {"XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder)}  # so that a first run is one indeed
        self._began = time.perf_counter()
        # A session of its own: Ctrl-C is for the caller, who then ends all of them. And a folder of its own:
        # PufferLib leaves a link to itself wherever it is imported.
        self._process = subprocess.Popen(
            [str(python), str(script), workload, *setting.split()],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            stdin=subprocess.DEVNULL,
            env=os.environ | kept | {"BENCH_MARKS": str(self._diaries)},
            cwd=folder,
            start_new_session=True,
        )
        self._family = Family(self._process.pid)

    @property
    def name(self) -> str:
        return f"{self.peer} {self.setting}".strip()

    @property
    def peak_mb(self) -> int | None:
        """Of all its processes together; what they share is counted once."""
        return round(self._family.peak_mb) or None

    @property
    def versions(self) -> dict[str, str]:
        """Of the library and what it stands on."""
        file = self._diaries / "versions.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def warm_up(self, limit: float) -> None:
        """Let it learn for a while after its first update, then stop it."""
        first = None
        while first is None or time.perf_counter() - first < WARM_UP:
            self._require_alive(self._began, limit)
            times = [marks[0][0] for marks in self._marks() if marks]
            first = min(times) if times else None
            time.sleep(0.1)
        self.first_update_seconds = first - self._began
        self.pause()

    def turn(self, seconds: float, limit: float) -> float:
        """Let it work for so long, or until it has made some iterations: how fast it was."""
        self._family.signal(signal.SIGCONT)
        begin, rate = time.perf_counter() + SETTLE, 0.0
        time.sleep(SETTLE)
        while not rate:
            time.sleep(seconds)
            self._require_alive(begin, limit)
            rate = rate_between(self._marks(), begin, time.perf_counter())
        self.rates.append(rate)
        self.pause()
        return rate

    def end(self) -> None:
        """End all of its processes."""
        self._family.sample()
        self._family.end()
        self._process.wait()
        self._errors.close()

    def pause(self) -> None:
        """Stop all of its processes until its next turn."""
        self._family.sample()
        self._family.signal(signal.SIGSTOP)

    def _require_alive(self, begin: float, limit: float) -> None:
        code = self._process.poll()
        if code is not None or time.perf_counter() - begin > limit:
            self._errors.seek(0)
            raise Failed(why(code, self._errors.read(), limit))

    def _marks(self) -> list[list[tuple[float, float]]]:
        """What each process has noted: time and steps; a line that is being written is left out."""
        texts = [file.read_text().rpartition("\n")[0] for file in self._diaries.glob("[0-9]*")]
        return [[(float(t), float(n)) for t, n in map(str.split, text.splitlines())] for text in texts]


def one_round(number: int, contenders: Sequence[Contender], seconds: float, limit: float) -> dict[str, str]:
    """A turn of everyone, in alternating order; the reasons of those that failed, by name."""
    failed: dict[str, str] = {}
    for one in contenders if number % 2 == 0 else list(reversed(contenders)):
        try:
            one.turn(seconds, limit)
        except Failed as reason:
            one.pause()  # if it only took too long, it shall not work during the turns of others
            failed[one.name] = str(reason)
    rates = ", ".join(f"{one.name} {one.rates[-1]:,.0f}" for one in contenders if one.name not in failed)
    say(f"  round {number + 1}: {rates}")
    return failed


def say(text: Any) -> None:
    """To whoever watches."""
    print(text, file=sys.stderr, flush=True)
