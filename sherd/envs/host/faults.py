"""Errors raised inside a user's environment, said with the environment and the user's own line."""

from __future__ import annotations

import os
import traceback

from sherd.errors import RunError, Source

_SHERD = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
CONSTRUCTOR = "its constructor"


def blamed_line(error: BaseException) -> Source | None:
    """The innermost line of the traceback that is neither ours nor an installed library's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = os.path.abspath(frame.filename)
        library = f"{os.sep}site-packages{os.sep}" in file or frame.filename.startswith("<")
        if not library and not file.startswith(_SHERD) and frame.lineno is not None:
            return Source(file, frame.lineno)
    return None


def env_failed(env_id: str, index: int, during: str, error: BaseException) -> RunError:
    """The RunError for an exception that environment `index` of the run raised in `during`.

    >>> print(env_failed("Toy-v0", 3, "step", ValueError("no such move")))
    Toy-v0: environment 3 failed in step: ValueError: no such move
      fix: `sherd check-env Toy-v0 --steps 10000` steps one environment alone and names what is wrong
    """
    source = blamed_line(error)
    where = f"\n  at {source.quoted()}" if source else ""
    return RunError(
        f"{env_id}: environment {index} failed in {during}: {type(error).__name__}: {error}{where}\n"
        f"  fix: {_fix(env_id, during)}"
    )


def _fix(env_id: str, during: str) -> str:
    if during == CONSTRUCTOR:
        # Nothing can be stepped, so the command would only say the same.
        return "mend the constructor; making one by hand in Python shows the whole traceback"
    # A class or function that was passed in has no id: the command finds it in its module.
    name = env_id if any(mark in env_id for mark in "-/:") else f"your_module:{env_id}"
    return f"`sherd check-env {name} --steps 10000` steps one environment alone and names what is wrong"
