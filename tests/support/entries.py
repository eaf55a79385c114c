"""Entries of workers, for the tests of supervision; imported in the workers, so nothing heavy here."""

from __future__ import annotations

import os
import signal
import sys
import time

from sherd.errors import RunError, UsageError


def loop(payload, context):
    """Say hello, then wait to be told to leave."""
    context.send(("hello", context.attempt, payload))
    while not context.stopping:
        with context.clock.waiting():
            context.watch()
            time.sleep(0.02)
    context.send("stopped")


def finish(payload, context):
    """Count and return."""
    context.clock.count(payload)
    context.row.iterations += 1
    context.send("done")


def leave(payload, context):
    """Leave in the way that the payload names."""
    if payload == "closed":
        from sherd.runtime.shared import Closed

        raise Closed
    if payload == "os._exit":
        os._exit(0)
    sys.exit(payload)


def fail(payload, context):
    """Raise."""
    if payload == "usage":
        raise UsageError("the horizon is wrong\n  fix: make it 8")
    if payload == "run":
        raise RunError("the world failed\n  at train.py:3")
    raise ValueError("no such\n thing")


def fail_once(payload, context):
    """Raise at the first attempt only."""
    if context.attempt == 0:
        raise ValueError("at first")


def deaf(payload, context):
    """Never look at the flags; and refuse SIGTERM if told so."""
    if payload == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context.send("deaf")
    while True:
        time.sleep(10)


def talk(payload, context):
    """Send more than a pipe holds, until told to leave."""
    while True:
        context.send(bytes(payload))


def half_a_message(payload, context):
    """Be stopped in the middle of a message."""
    context.send("first")
    os.write(context._outbox._connection.fileno(), b"\x02" + (1000).to_bytes(8, "big") + b"abc")
    os.kill(os.getpid(), signal.SIGSTOP)


def with_child(payload, context):
    """Leave a process behind that holds every file open."""
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    context.send(pid)
    time.sleep(30)


def describe_process(payload, context):
    """What the process is made of."""
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    context.send(
        {
            "modules": [name for name in ("jax", "numpy") if name in sys.modules],
            "environ": dict(os.environ),
            "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
            "yields": hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(0) == os.SCHED_IDLE,
            "blocked": blocked,
            "script": hasattr(sys.modules["__main__"], "Mine"),
            "payload": payload,
            "time": time.monotonic(),
        }
    )


def simulate(payload, context):
    """What a simulator imports."""
    import gymnasium
    import numpy  # noqa: F401

    context.send((time.monotonic(), gymnasium.__name__, "jax" in sys.modules))
