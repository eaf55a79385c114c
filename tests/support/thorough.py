"""What `make test` leaves out to stay short, and `make thorough` runs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

ASKED = bool(os.environ.get("SHERD_THOROUGH"))
REASON = "it runs with `make thorough`"
thorough = pytest.mark.skipif(not ASKED, reason=REASON)


def mostly_thorough(cases: Iterable[Any], always: Collection[Any]) -> list[Any]:
    """The cases of a parametrised test, of which only some always run."""
    return [case if case in always else pytest.param(case, marks=thorough) for case in cases]
