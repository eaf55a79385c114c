"""Idle cores: whoever uses them, they are not free."""

from __future__ import annotations

import os
from pathlib import Path

from sherd.runtime.cores import idle_seconds

STAT = """cpu  50 0 30 700 20 0 0 0 0 0
cpu0 10 0 10 300 10 0 0 0 0 0
cpu1 20 0 10 100 10 0 0 0 0 0
cpu11 20 0 10 300 0 0 0 0 0 0
intr 12345 0 9
ctxt 99
"""


def test_only_these_cores_count_and_waiting_for_a_disk_is_idle(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT)
    second = os.sysconf("SC_CLK_TCK")
    assert idle_seconds((0, 1), stat) == (310 + 110) / second
    assert idle_seconds((11,), stat) == 300 / second


def test_a_system_that_does_not_count_is_not_one_without_idle_cores(tmp_path: Path) -> None:
    assert idle_seconds((0,), tmp_path / "none") is None
    (tmp_path / "stat").write_text("cpu0 0 0 0 0 0 0 0 0 0 0\n")
    assert idle_seconds((0,), tmp_path / "stat") is None
