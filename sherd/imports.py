"""Load what a user names as `module:attribute`, from the current directory or from what is installed."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from sherd.errors import UsageError, nearest


def is_path(name: Any) -> bool:
    """Whether a name has the form `module:attribute`.

    >>> is_path("my_module:MyClass"), is_path("ppo")
    (True, False)
    """
    return isinstance(name, str) and ":" in name


def load_object(path: str) -> Any:
    """The object that `module:attribute` names.

    >>> load_object("math:pi")
    3.141592653589793
    """
    module, _, name = path.partition(":")
    if not module or not name:
        raise UsageError(f"{path!r} names nothing\n  fix: write module:attribute, such as my_module:MyClass")
    # As with `python -m`, the user's own modules lie in the current directory.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            raise
        raise UsageError(
            f"{path}: there is no module {error.name!r}\n"
            "  fix: run from the directory that holds it, or install it"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            if module == "__main__":
                raise UsageError(
                    f"{path}: a script defined {name!r}, where no other program finds it\n"
                    f"  fix: move it to a module of its own and use it from there, as my_module:{name}"
                )
            options = [option for option in vars(found) if not option.startswith("_")]
            raise UsageError(f"{path}: module {module!r} has no {name!r}; {nearest(part, options)}")
        found = getattr(found, part)
    return found
