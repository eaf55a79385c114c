"""Ctrl-C while a run is started is not lost, and what was started by then is ended."""

import contextlib
import signal

import pytest

import sherd
from sherd.executors import BUILT_IN


def test_ctrl_c_while_starting_ends_what_was_started(monkeypatch):
    start, closed = BUILT_IN["inline"], []

    def swallowing(order):
        """What JAX's callbacks of garbage collection may do with a KeyboardInterrupt."""
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        running = start(order)
        close = running.close
        monkeypatch.setattr(running, "close", lambda **how: (closed.append(how), close(**how)), raising=False)
        return running

    monkeypatch.setitem(BUILT_IN, "inline", swallowing)
    with pytest.raises(KeyboardInterrupt):
        sherd.train("reinforce", "CartPole-v1", steps=1000, envs=2, eval_episodes=0)
    assert closed == [{"at_once": True}]
