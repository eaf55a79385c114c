"""The scripts of the other libraries say what they are, and what they need, where none of it is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks" / "peers").glob("run_*.py"))


def run_bare(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """With the standard library alone."""
    command = [sys.executable, "-S", "-E", str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_help_needs_no_library(script: Path) -> None:
    done = run_bare(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {script.name}" in done.stdout
    assert f"{script.name} " in done.stdout.split("KEY=VALUE", 1)[1]  # its docstring says how to call it


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_missing_library_is_one_line_with_a_fix(script: Path) -> None:
    done = run_bare(script, "cartpole-8")
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"{script.name}: No module named ")
    name = script.stem.removeprefix("run_").replace("_", "-")
    assert (f"environments.py {name}`" if name not in ("sherd", "limits") else "pip install -e .") in line
