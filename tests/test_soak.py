"""Memory stays flat: a short form of `benchmarks/soak.py`, which takes 20 minutes."""

import subprocess
import sys
from pathlib import Path

import pytest
from leaks import no_leaks

pytestmark = pytest.mark.usefixtures("no_leaks")
__all__ = ["no_leaks"]

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "soak.py"


@pytest.mark.slow
def test_memory_stays_flat() -> None:
    # It would take both cores from the other tests for a minute, and memory grows at any speed.
    command = ["nice", "-n", "5", sys.executable, str(SCRIPT), "--minutes", "0.8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flat" in done.stdout
