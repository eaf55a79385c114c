"""MuJoCo (extra `mujoco`), whose environments are Gymnasium's own ids such as `HalfCheetah-v5`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep MuJoCo from remarking on Gymnasium's model files, which the user cannot change.

    It would print each remark and leave a log file in the current directory. Warnings that come later,
    while a simulation runs, are left alone.
    """
    try:
        import mujoco
    except ImportError:
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def physics() -> Any:
    """MuJoCo's own step: (model, data, number of steps)."""
    import mujoco

    return mujoco.mj_step
