"""A user's directory, and the command run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sherd.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of a user who has written mine.py."""
    shutil.copy(Path(__file__).parent / "user_code.py", tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def sherd(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `sherd` with a command line, in this process and in the user's directory."""

    def run(line: str) -> Outcome:
        try:
            code = main(line.split())
        except SystemExit as ending:  # tyro's --help
            code = int(ending.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
