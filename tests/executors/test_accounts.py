"""Accounts: what a run says about the cores it leaves."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from sherd.executors import accounts
from sherd.policies.base import Fragment
from sherd.runtime.board import Board, Clock


@pytest.mark.parametrize(
    ("idle", "said"), [(1.5, "about 1.5 of 2 cores are free"), (0.0, "about 2.0 of them by other programs")]
)
def test_free_cores_are_those_that_nobody_uses(
    monkeypatch: pytest.MonkeyPatch, idle: float, said: str
) -> None:
    monkeypatch.setattr(accounts, "_SECONDS_BETWEEN_PICTURES", 0.0)
    monkeypatch.setattr(accounts, "available_cores", lambda: (0, 1))
    now = [0.0]  # a clock of its own: a process that is interrupted between two looks at it shall not matter
    monkeypatch.setattr(accounts, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(accounts, "idle_seconds", lambda cores: idle * now[0])
    fragments = (Fragment("actors", ("env", "act")), Fragment("learner", ("learn",)))
    cut: Any = SimpleNamespace(fragments=fragments, crossings=())
    cut.graph = SimpleNamespace(root=SimpleNamespace(index=0))
    cut.policy = SimpleNamespace(runs_ahead=False)
    wiring: Any = SimpleNamespace()
    board = Board.create(len(fragments))
    try:
        Clock(board.row(0))  # an actor that is busy, and a learner that waits for it
        with Clock(board.row(1)).waiting():
            found = accounts.Accounts(cut, wiring, board)
            time.sleep(0.05)
            now[0] = 1.0
            assert found.picture(SimpleNamespace(made=1))  # type: ignore[arg-type]
        assert said in found.bottleneck()
    finally:
        board.close()
        board.unlink()
