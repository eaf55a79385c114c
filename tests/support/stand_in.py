"""A worker's context without a process: for testing what runs in one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sherd.runtime.board import Board, Clock


def context(attempt: int = 0) -> Any:
    """Looks like a worker's context; what it is told is kept in `said`."""
    board = Board.create(1)
    said: list[Any] = []
    return SimpleNamespace(
        attempt=attempt,
        board=board,
        row=board.row(0),
        clock=Clock(board.row(0)),
        watch=lambda: None,
        send=said.append,
        said=said,
        stopping=False,
    )


def free(context: Any) -> None:
    """Give its shared memory back."""
    context.board.close()
    context.board.unlink()
