"""What an executor tells while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sherd.runtime.status import FragmentStatus


@dataclass(frozen=True)
class Progress:
    """Some iterations that were just made (none, if only time passed), and how the fragments are doing."""

    summaries: list[dict[str, float]]
    seconds: float
    statuses: Sequence[FragmentStatus] = ()
    notes: Sequence[str] = ()
