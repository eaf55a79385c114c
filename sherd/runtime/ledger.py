"""The ledger: where every sample went.

    produced = consumed + dropped (why) + in flight

All counts are environment steps. A sample is *produced* when it was handed over whole: what a killed worker
had begun and not handed over was never produced, and counts nowhere. It is *consumed* when a learner has
learnt from it, *dropped* when somebody decided against that and said why ("stale", "interrupted"), *in
flight* while it lies in a queue or a buffer. Each of the four is counted where it happens, by different
processes; were in flight computed as the rest of the others, the ledger would always balance and prove
nothing. Only what a learner held when it ended without a word, because it died or because Ctrl-C broke off
its first iteration, nobody else can count: that is the rest, and has a reason of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sherd.errors import RunError

_COLUMNS = ("produced", "consumed", "dropped", "in flight")
_BALANCED = "balanced: produced = consumed + dropped + in flight"


@dataclass
class _Counts:
    """The four numbers of a ledger, in environment steps."""

    produced: int = 0
    consumed: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    in_flight: int = 0

    def drop(self, why: str, steps: int) -> None:
        """Count steps that were thrown away, and why."""
        self.dropped[why] = self.dropped.get(why, 0) + steps

    def balance(self) -> int:
        """What is missing (above 0) or was counted twice (below 0); 0, or the ledger is wrong."""
        return int(self.produced - self.consumed - sum(self.dropped.values()) - self.in_flight)

    def row(self) -> tuple[int, int, int, int]:
        """Produced, consumed, dropped for whatever reason, in flight."""
        return int(self.produced), int(self.consumed), int(sum(self.dropped.values())), int(self.in_flight)

    def as_dict(self) -> dict[str, Any]:
        """The counts as plain data."""
        return {
            "produced": int(self.produced),
            "consumed": int(self.consumed),
            "dropped": {why: int(steps) for why, steps in self.dropped.items()},
            "in_flight": int(self.in_flight),
        }

    def _wrong(self) -> bool:
        counts = (self.produced, self.consumed, *self.dropped.values(), self.in_flight)
        return self.balance() != 0 or min(counts) < 0


@dataclass
class StreamCounts(_Counts):
    """What passed through one stream."""

    name: str = field(default="", kw_only=True)

    def as_dict(self) -> dict[str, Any]:
        """The line as plain data."""
        return {"name": self.name, **super().as_dict()}


@dataclass
class Ledger(_Counts):
    """Counts every sample of a run: in total, and for each stream.

    >>> first = StreamCounts(name="rollouts 0", produced=6_144, consumed=5_120, in_flight=1_024)
    >>> second = StreamCounts(name="rollouts 1", produced=4_096, consumed=3_584)
    >>> second.drop("stale", 512)
    >>> ledger = Ledger.of([first, second])
    >>> ledger.balance()
    0
    >>> print(ledger)
    environment steps    produced    consumed     dropped   in flight
    rollouts 0              6,144       5,120           0       1,024
    rollouts 1              4,096       3,584         512           0
    total                  10,240       8,704         512       1,024
    dropped: 512 stale
    balanced: produced = consumed + dropped + in flight
    """

    streams: list[StreamCounts] = field(default_factory=list, kw_only=True)

    @classmethod
    def of(cls, streams: Iterable[StreamCounts]) -> Ledger:
        """The ledger of streams that lie side by side, so that no sample passes two of them."""
        ledger = cls(streams=list(streams))
        for stream in ledger.streams:
            ledger.produced += stream.produced
            ledger.consumed += stream.consumed
            ledger.in_flight += stream.in_flight
            for why, steps in stream.dropped.items():
                ledger.drop(why, steps)
        return ledger

    def check(self) -> None:
        """Raise if the total or a stream does not balance, or if a count is negative.

        >>> Ledger(produced=10, consumed=7, in_flight=2).check()
        Traceback (most recent call last):
        sherd.errors.RunError: the ledger of samples does not balance, 1 step is missing in total
        environment steps    produced    consumed     dropped   in flight
        total                      10           7           0           2
          fix: none on your side, this is a defect of Sherd; please report it with these numbers
        """
        wrong = self._complaints()
        if wrong:
            raise RunError(
                f"the ledger of samples does not balance, {'; '.join(wrong)}\n{self._table()}\n"
                "  fix: none on your side, this is a defect of Sherd; please report it with these numbers"
            )

    def as_dict(self) -> dict[str, Any]:
        """The ledger as plain data, for summary.json.

        >>> Ledger(produced=3, consumed=3).as_dict()
        {'produced': 3, 'consumed': 3, 'dropped': {}, 'in_flight': 0, 'balance': 0, 'streams': []}
        """
        lines = [stream.as_dict() for stream in self.streams]
        return {**super().as_dict(), "balance": self.balance(), "streams": lines}

    def to_json(self) -> str:
        """The ledger as one line of JSON."""
        return json.dumps(self.as_dict())

    def __str__(self) -> str:
        reasons = ", ".join(f"{steps:,} {why}" for why, steps in sorted(self.dropped.items()) if steps)
        wrong = self._complaints()
        verdict = f"NOT balanced: {'; '.join(wrong)}" if wrong else _BALANCED
        return "\n".join([self._table(), *([f"dropped: {reasons}"] if reasons else []), verdict])

    def _complaints(self) -> list[str]:
        lines: list[tuple[str, _Counts]] = [("total", self)]
        lines += [(stream.name, stream) for stream in self.streams]
        return [_complaint(name, counts) for name, counts in lines if counts._wrong()]

    def _table(self) -> str:
        names = ["environment steps", *(stream.name for stream in self.streams), "total"]
        rows = [stream.row() for stream in self.streams] + [self.row()]
        cells = [_COLUMNS, *(tuple(f"{count:,}" for count in row) for row in rows)]
        first = max(len(name) for name in names)
        other = max(9, *(len(cell) for line in cells for cell in line))
        lines = (
            f"{name:<{first}}" + "".join(f"   {cell:>{other}}" for cell in line)
            for name, line in zip(names, cells)
        )
        return "\n".join(lines)


def _complaint(name: str, counts: _Counts) -> str:
    """What is wrong with a line that is wrong."""
    missing = counts.balance()
    where = "in total" if name == "total" else f"in {name}"
    if missing == 0:
        return f"a count is negative {where}"
    steps = "1 step is" if abs(missing) == 1 else f"{abs(missing):,} steps are"
    return f"{steps} {'missing' if missing > 0 else 'counted twice'} {where}"
