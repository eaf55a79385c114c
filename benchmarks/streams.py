"""How fast do processes talk here? Sherd's streams beside a pipe, ZeroMQ, bare semaphores and one memcpy.

    python benchmarks/streams.py

Two processes per transport. *Latency* is a round trip of 128 bytes; beside it a bare ping-pong of two
semaphores, which nothing that sleeps while it waits can beat; once with both processes on one core (what the
code costs), once on two (what waking another core adds). *Throughput* is the time per rollout, from a
private array of the sender to where the receiver can read it, over a burst that ends with an answer; beside
it one np.copyto of the same bytes within one process. All transports take turns, several times over, and
medians are printed, because machines are shared. pyzmq is used if it is there, and needed for nothing else.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from transports import KINDS, SMALL, SPAWN, Array, Link, Semaphores

SIZES = {"64 KB": 64 * 1024, "1 MB": 1024**2, "16 MB": 16 * 1024**2}
ROUND_TRIPS = 500
BYTES_PER_BURST = 256 * 1024**2
REPEATS = 9
BARE, COPY, COPIES = "bare semaphores", "np.copyto", "np.copyto, two targets in turn"


def answer(end: Any, burst: int, core: int | None) -> None:
    """The other process: after every `burst` messages, one small answer."""
    threading.Thread(target=leave_with_parent, daemon=True).start()
    pin(core)
    channel, reply, got = end.open(), np.ones(SMALL, "uint8"), 0
    while True:
        while got < burst:
            got += channel.receive()
        got -= burst
        channel.send(reply)


def leave_with_parent() -> None:
    """End this process when the one that measures is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def pin(core: int | None) -> None:
    """Stay on one core; None: on any of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1) if core is None else {core})


class Bench:
    """Some transports, each with its second process, ready to take turns."""

    def __init__(self, kinds: dict[str, Any], nbytes: int, burst: int, cores: tuple[int, int] | None) -> None:
        near_core, far_core = cores or (None, None)
        self.payload, self.burst, self.core = np.ones(nbytes, "uint8"), burst, near_core
        self.steps: dict[str, Callable[[], None]] = {}
        self.processes, self.kept = [], []
        for name, kind in kinds.items():
            near, far, keep = kind.pair(nbytes)
            self.kept.append((near, far, keep))
            self.processes.append(SPAWN.Process(target=answer, args=(far, burst, far_core), daemon=True))
            self.processes[-1].start()
            self.steps[name] = self._step(near.open())

    def _step(self, channel: Link) -> Callable[[], None]:
        def step() -> None:
            for _ in range(self.burst):
                channel.send(self.payload)
            channel.receive()

        return step

    def measure(self, rounds: int) -> dict[str, list[float]]:
        """Seconds per message (a burst and its answer, divided), several times, taking turns."""
        times: dict[str, list[float]] = {name: [] for name in self.steps}
        pin(self.core)
        for turn in range(REPEATS + 1):
            for name, step in self.steps.items():
                taken = timed(step, rounds) / self.burst
                if turn:  # the first turn warms up
                    times[name].append(taken)
        pin(None)
        return times

    def close(self) -> None:
        """End the other processes."""
        for process in self.processes:
            process.kill()
            process.join()
        for near, _, keep in self.kept:
            near.close()
            if hasattr(keep, "unlink"):
                keep.unlink()


def timed(step: Callable[[], None], rounds: int) -> float:
    """Seconds per step."""
    began = time.perf_counter()
    for _ in range(rounds):
        step()
    return (time.perf_counter() - began) / rounds


def copies(nbytes: int, times: int, targets: int) -> Callable[[], None]:
    """What moving the bytes must cost at least; a stream has two slots, which a cache may not hold."""
    source: Array = np.ones(nbytes, "uint8")
    turns = [source.copy() for _ in range(targets)] * (times // targets)

    def step() -> None:
        for target in turns:
            np.copyto(target, source)

    return step


def show(title: str, times: dict[str, list[float]], base: str, nbytes: int | None = None) -> None:
    """One table: medians, and how they compare with the base's, turn by turn."""
    print(f"\n{title}\n\n| transport | median, us | best, us |{' GB/s |' if nbytes else ''} x {base} |")
    print("|---|---|---|---|" + ("---|" if nbytes else ""))
    for name in [base, *([COPIES] if base == COPY else []), *KINDS]:
        if name not in times:
            print(f"| {name} | not installed | |{' |' if nbytes else ''} |")
            continue
        median, best = statistics.median(times[name]), min(times[name])
        ratio = statistics.median(a / b for a, b in zip(times[name], times[base]))
        rate = f" {nbytes / median / 1e9:.1f} |" if nbytes else ""
        print(f"| {name} | {median * 1e6:,.1f} | {best * 1e6:,.1f} |{rate} {ratio:.2f} |", flush=True)


def installed() -> dict[str, Any]:
    """The transports that this machine has."""
    try:
        import zmq  # noqa: F401
    except ImportError:
        return {name: kind for name, kind in KINDS.items() if not name.startswith("ZeroMQ")}
    return dict(KINDS)


def latency(kinds: dict[str, Any], where: str, cores: tuple[int, int] | None) -> None:
    """A table of round trips."""
    bench = Bench({BARE: Semaphores} | kinds, SMALL, 1, cores)
    show(f"Latency: round trip of {SMALL} bytes, {where}", bench.measure(ROUND_TRIPS), BARE)
    bench.close()


def throughput(kinds: dict[str, Any], size: str, nbytes: int) -> None:
    """A table of bursts."""
    burst = max(BYTES_PER_BURST // nbytes, 8)
    bench = Bench(kinds, nbytes, burst, None)
    bench.steps |= {COPY: copies(nbytes, burst, 1), COPIES: copies(nbytes, burst, 2)}
    show(f"Throughput: rollouts of {size}", bench.measure(1), COPY, nbytes)
    bench.close()


def main() -> None:
    """Measure and print the tables."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    kinds, cores = installed(), os.cpu_count() or 1
    if hasattr(os, "sched_setaffinity") and cores > 1:
        latency(kinds, "both processes on one core", (0, 0))
        latency(kinds, "each process on its own core", (0, 1))
    latency(kinds, "wherever the system puts them", None)
    for size, nbytes in SIZES.items():
        throughput(kinds, size, nbytes)


if __name__ == "__main__":
    main()
