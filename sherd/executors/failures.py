"""Failures: of several processes that failed, the one that was first, and what the user is told about it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sherd.errors import RunError, SherdError, UsageError
from sherd.policies.partition import Fragments
from sherd.runtime.supervise import Failed

# What those say who compute with a process that is gone: by an exception, or JAX's service makes them abort.
_LOST_A_PEER = ("gloo", "nccl", "coordination service", "sigabrt")


def first_cause(failures: Sequence[Failed]) -> Failed:
    """The failure that the others seem to have followed from: all may be heard of at the same moment."""
    return min(failures, key=_seems_to_follow)


def _seems_to_follow(failed: Failed) -> bool:
    words = f"{failed.cause} {failed.traceback}".lower()
    return any(name in words for name in _LOST_A_PEER)


def failure(event: Failed, cut: Fragments) -> SherdError:
    """The error that ends the run: which process, why, the line of the loop, and the worker's traceback."""
    if event.usage:
        return UsageError(event.cause)
    who = f"{event.worker.name}, a process of kind {event.worker.kind}"
    story = "".join(f"\n  | {line}" for line in event.traceback.rstrip().splitlines())
    return RunError(f"{who}, failed: {event.cause}{_place_in_loop(event, cut)}{story}")


def _place_in_loop(event: Failed, cut: Fragments) -> str:
    """The line of the loop whose stage the traceback came through, or the fragment's first."""
    owned = [node for node in cut.graph.nodes() if cut.owner[node.name] == event.worker.fragment]
    inside = [n for n in owned if re.search(rf", in {re.escape(n.op.name)}$", event.traceback, re.M)]
    return "".join(f"\n  in the loop at {node.source.quoted()}" for node in (inside or owned)[:1])
