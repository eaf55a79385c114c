"""What lowering expects of whoever carries messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Port(Protocol):
    """One end of a crossing."""

    def send(self, arrays: Sequence[Any]) -> None:
        """Hand a message over; the arrays may be changed afterwards."""

    def receive(self) -> list[Any]:
        """Wait for the next message; its arrays do not change before `release`."""

    def release(self) -> None:
        """Give back what was received since the last release."""
