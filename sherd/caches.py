"""Where Sherd keeps what it has compiled, for the next run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder in the user's cache, which need not exist yet.

    >>> cache_folder("xla").parts[-2:]
    ('sherd', 'xla')
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "sherd", name)
