"""What can go wrong, said well.

Two kinds only: a `UsageError` is the caller's to fix (exit code 2), a `RunError` is the world's
(exit code 1). Each message says what happened, where in the caller's own source, and how to fix it.
"""

from __future__ import annotations

import difflib
import linecache
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

_HERE = os.path.dirname(os.path.abspath(__file__))
# Built-in algorithms are written exactly as a user's would be, so their lines count as the author's.
_AUTHORED = os.path.join(_HERE, "algorithms")

# Seeds are 64-bit integers, and a run's evaluation adds a little to its own.
LARGEST_SEED = 2**63 - 2**20

_STANDARD = os.path.dirname(os.path.abspath(difflib.__file__))


class SherdError(Exception):
    """Base of every error that Sherd raises on purpose."""

    exit_code = 1


class UsageError(SherdError):
    """The caller asked for something that cannot be; the message says how to ask."""

    exit_code = 2


class RunError(SherdError):
    """A run that was asked for correctly failed."""

    exit_code = 1


class SherdWarning(UserWarning):
    """Something the author probably did not mean."""


@dataclass(frozen=True)
class Source:
    """A line of the author's own code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"

    def quoted(self) -> str:
        """The full position and the text of the line, for error messages.

        >>> print(Source("missing.py", 3).quoted())
        missing.py:3
        """
        text = linecache.getline(self.file, self.line).strip()
        return f"{self.file}:{self.line}" + (f"\n    {text}" if text else "")


def is_author_file(file: str) -> bool:
    """Whether a source file is the author's: not ours, not a library's, not Python's own."""
    if file.startswith("<"):
        return False
    file = os.path.abspath(file)
    if file.startswith(_AUTHORED + os.sep):
        return True
    library = f"{os.sep}site-packages{os.sep}" in file or file.startswith(_STANDARD + os.sep)
    return not library and not file.startswith(_HERE + os.sep)


def author_source() -> Source:
    """The innermost line of the call stack that is the author's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_author_file(frame.f_code.co_filename):
            return Source(os.path.abspath(frame.f_code.co_filename), frame.f_lineno)
        frame = frame.f_back
    return Source("<unknown>", 0)


def nearest(name: str, options: Iterable[str]) -> str:
    """A hint naming the closest option, or listing them when none is close.

    >>> nearest("pp", ["ppo", "dqn"])
    "did you mean 'ppo'?"
    >>> nearest("zzz", ["ppo", "dqn"])
    'there are: dqn, ppo'
    >>> nearest("fine", ["SingleLearnerFine", "Central"])
    "did you mean 'SingleLearnerFine'?"
    """
    known = sorted(options)
    folded = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.5)
    if not close and len(name) > 2:
        close = [option for option in folded if name.lower() in option]
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"there are: {shown}"


def require_range(name: str, value: float, least: float, most: float | None = None) -> None:
    """Raise unless a number lies between two bounds, themselves allowed.

    >>> require_range("seed", -1, 0)
    Traceback (most recent call last):
        ...
    sherd.errors.UsageError: seed is -1, but must be at least 0
    """
    if value < least:
        raise UsageError(f"{name} is {value}, but must be at least {least}")
    if most is not None and value > most:
        raise UsageError(f"{name} is {value}, but must be at most {most}")


def missing_extra(package: str, extra: str, wanted_for: str) -> UsageError:
    """The error for an optional dependency that is not installed.

    >>> print(missing_extra("ale_py", "atari", "ALE/Pong-v5"))
    ALE/Pong-v5 needs the package 'ale_py', which is not installed.
      fix: pip install 'sherd[atari]'
    """
    return UsageError(
        f"{wanted_for} needs the package {package!r}, which is not installed.\n"
        f"  fix: pip install 'sherd[{extra}]'"
    )
