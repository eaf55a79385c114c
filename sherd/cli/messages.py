"""What reaches the user's terminal: our own errors and warnings, said plainly, and no library's chatter."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sherd.errors import SherdError, SherdWarning, Source, UsageError, is_author_file

_CHATTY = ("jax", "absl", "tensorflow", "gymnasium", "brax")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def complain(text: str) -> None:
    """Print a message to stderr, recognisably ours."""
    print(f"sherd: {text}", file=sys.stderr)


def explain(error: Exception) -> tuple[str, int]:
    """The message and the exit code for an error.

    >>> from sherd.errors import UsageError
    >>> explain(UsageError("no such thing"))
    ('no such thing', 2)
    >>> explain(ValueError("odd"))[0].splitlines()[0]
    'internal error: ValueError: odd'
    """
    if isinstance(error, SherdError):
        return str(error), error.exit_code
    what = f"{type(error).__name__}: {error}".strip().removesuffix(":")
    found = _user_line(error)
    if found:
        source, where = found
        fix = "mend that line; --debug shows the whole traceback"
        return f"{where}: {what}\n  at {source.quoted()}\n  fix: {fix}", UsageError.exit_code
    return f"internal error: {what}\n  fix: please report it with the traceback that --debug shows", 1


def _user_line(error: Exception) -> tuple[Source, str] | None:
    """The innermost line of the user's own code that an error came through, and what it is a line of."""
    if isinstance(error, SyntaxError) and error.filename:
        return Source(error.filename, error.lineno or 0), f"while importing {_module(error.filename)}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        file = frame.f_code.co_filename
        if is_author_file(file) and not os.path.abspath(file).startswith(_OURS + os.sep):
            # The console script that started us is nobody's code.
            if frame.f_globals.get("__name__") == "__main__":
                return None
            name = frame.f_code.co_qualname
            where = f"while importing {_module(file)}" if name == "<module>" else f"in {name}"
            return Source(file, line), where
    return None


def _module(file: str) -> str:
    return os.path.splitext(os.path.basename(file))[0]


@contextmanager
def quiet_libraries(debug: bool = False) -> Iterator[None]:
    """Show Sherd's own warnings, each once, and no others; with `debug`, everything."""
    if debug:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    told: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, SherdWarning) and str(message) not in told:
            told.add(str(message))
            complain(f"warning: {message}")

    # Libraries put filters in front of ours when they are imported, so filters alone are not enough.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SherdWarning)
        warnings.showwarning = show
        yield
