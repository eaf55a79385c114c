"""One virtual environment for each peer, because their pins conflict; what does not install is remembered.

    python benchmarks/environments.py                 make all that are missing
    python benchmarks/environments.py sb3 torchrl

PyTorch is asked for by its exact version and first, so that nothing else can bring the gigabytes of another
build. An environment whose pins are unchanged is used again; a failure too, until --again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parent.parent / ".bench"
TORCH = ("torch==2.13.0",)
SIMULATORS = (
    "gymnasium==1.4.0",
    "mujoco==4.0.0",
    "imageio==2.38.1",
    "packaging==25.0",
    "ale-py==0.12.1",
    "numpy==2.4.6",
)
OPENCV = ("opencv-python-headless==5.0.0.93",)
OLD_OPENCV = ("opencv-python-headless==4.11.0.86",)
# These two hold Gymnasium at 0.29, whose newest HalfCheetah is v4: the same simulation.
OLD_SIMULATORS = (
    "gymnasium==0.29.1",
    "mujoco==4.0.0",
    "imageio==2.38.1",
    "packaging==25.0",
    "ale-py==0.12.1",
    "numpy==1.26.4",
)

# What is installed, group after group.
PINS: dict[str, tuple[tuple[str, ...], ...]] = {
    "sb3": (TORCH, ("stable-baselines3==2.9.2", *SIMULATORS, *OPENCV)),
    "sbx": (TORCH, ("sbx-rl==0.28.0", "stable-baselines3==2.9.2", "jax==0.10.2", *SIMULATORS, *OPENCV)),
    "rllib": (TORCH, ("ray[rllib]==2.60.0", "gymnasium==1.2.2", *SIMULATORS[1:], *OPENCV)),
    "sample-factory": (TORCH, ("sample-factory==2.1.1", *OLD_SIMULATORS)),
    "torchrl": (TORCH, ("torchrl==0.14.1", "tensordict==0.14.3", *SIMULATORS, *OPENCV)),
    "tianshou": (TORCH, ("tianshou==2.0.1", *SIMULATORS, *OPENCV)),
    "pufferlib": (
        TORCH,
        ("setuptools==80.9.0", "wheel", "Cython", *OLD_SIMULATORS, *OLD_OPENCV),
        ("pufferlib==3.0.0",),
    ),
    # Rejax 0.1.3 does not know the interface of gymnax 1.0.
    "rejax": (("rejax==0.1.3", "jax==0.10.2", "flax==0.12.8", "gymnax==0.0.9"),),
}


@dataclass(frozen=True)
class Environment:
    """A peer's Python, or why there is none."""

    python: Path | None
    reason: str = ""


def prepare(peer: str, home: Path = HOME, again: bool = False) -> Environment:
    """The peer's environment, made if it is not there."""
    if peer == "sherd":
        return Environment(Path(sys.executable))
    folder, wanted = home / peer, repr(PINS[peer])
    python, done, failed = folder / "bin" / "python", folder / "pins.txt", folder / "failed.txt"
    if done.exists() and done.read_text() == wanted:
        return Environment(python)
    if failed.exists() and not again and failed.read_text().startswith(wanted):
        return Environment(None, failed.read_text().removeprefix(wanted).strip())
    print(f"{peer}: installing into {folder}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    for group in PINS[peer]:
        reason = _install(python, group)
        if reason:
            failed.write_text(f"{wanted}\n{reason}")
            print(f"{peer}: does not install: {reason}", file=sys.stderr, flush=True)
            return Environment(None, reason)
    done.write_text(wanted)
    return Environment(python)


def _install(python: Path, group: tuple[str, ...]) -> str:
    """Install; the last lines of the reason if that fails."""
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *group]
    variables = dict(os.environ)
    if any(name.startswith("pufferlib") for name in group):
        _mend_pufferlib(python)
        # Its setup.py compiles for CUDA wherever it finds nvcc, which does not fit the PyTorch above.
        folders = os.environ["PATH"].split(os.pathsep)
        without = [folder for folder in folders if not (Path(folder) / "nvcc").exists()]
        variables |= {"NO_OCEAN": "1", "PATH": os.pathsep.join(without), "MAX_JOBS": "1"}
        command += ["--no-build-isolation"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    return _last_lines(ended.stderr + ended.stdout) if ended.returncode else ""


def _last_lines(text: str) -> str:
    """What went wrong, in a line; pip's advice and warnings left out."""
    lines = [line.strip() for line in text.splitlines()]
    told = [
        line for line in lines if line and not line.lower().startswith(("warning", "note:", "hint:", "╰─>"))
    ]
    errors = [line for line in told if "error" in line.lower()]
    return " / ".join((errors or told)[-3:])[:300]


def _mend_pufferlib(python: Path) -> None:
    """PufferLib 3.0.0 has no wheel, and its setup.py downloads C libraries for its own games.

    NO_OCEAN=1 leaves those out, but setup.py then reads a name that it has not defined. Where a name is not
    defined, Python looks among the builtins; a .pth file, which the building Python reads first, defines it
    there.
    """
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([str(python), "-c", where], capture_output=True, text=True, check=True)
    mend = Path(found.stdout.strip()) / "pufferlib_setup.pth"
    mend.write_text("import builtins; builtins.c_extension_paths = []\n")


def main() -> None:
    """Make the environments that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peers", nargs="*", help=f"of {', '.join(PINS)}; none: all")
    parser.add_argument("--home", type=Path, default=HOME, help="where (default: .bench)")
    parser.add_argument("--again", action="store_true", help="try again what failed before")
    given = parser.parse_args()
    for peer in given.peers or PINS:
        made = prepare(peer, given.home, given.again)
        print(f"{peer}: {'ready' if made.python else made.reason}")


if __name__ == "__main__":
    main()
