"""A worker: one process that runs one replica of one fragment.

The child's side of supervision. Before the entry is called, the worker ties its life to the parent's, limits
its threads and opens what it was given, in this order: nothing that imports NumPy or JAX comes before the
environment variables that those read once.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from typing import Any, NoReturn

from sherd.errors import SherdError, UsageError
from sherd.runtime.board import Board, Clock
from sherd.runtime.mail import Kind, Outbox
from sherd.runtime.parcel import Packed

_SECONDS_BETWEEN_HEARTBEATS = 0.5
_PR_SET_PDEATHSIG = 1
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NPROC",  # the size of XLA's thread pools
)


@dataclass(frozen=True)
class WorkerSpec:
    """What to start: which replica of which fragment, the function it runs and what it may use."""

    fragment: str
    replica: int
    kind: str  # "environment", "actor", "policy", "learner" or "server"
    entry: str  # "package.module:function", called as function(payload, context)
    payload: Any = field(default=None, repr=False, compare=False)
    restarts: int = 0  # 0: its death ends the run
    cores: tuple[int, ...] = ()  # (): wherever the system likes
    threads: int = 1
    yields: bool = False  # whether it runs only where no one else would
    environ: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """How people and logs call it.

        >>> WorkerSpec("actors", 0, "actor", "module:run").name
        'actors[0]'
        """
        return f"{self.fragment}[{self.replica}]"


class Context:
    """What an entry is given beside its payload: the way to the parent, and the time accounts."""

    def __init__(self, spec: WorkerSpec, attempt: int, board: Board, index: int, outbox: Outbox) -> None:
        self.spec = spec
        self.attempt = attempt
        self.board = board
        self.row = board.row(index)
        self.clock = Clock(self.row)
        self._outbox = outbox
        self._parent = _parent_id()

    def send(self, message: Any) -> None:
        """Tell the parent; arrives there as `Said`."""
        self._outbox.send(Kind.SAID, message, self.watch)

    def watch(self) -> None:
        """Raise `Closed` if the run is closing or the parent is gone; cheap enough for every wait."""
        if self.board.closed or os.getppid() != self._parent:
            from sherd.runtime.shared import Closed

            raise Closed(f"{self.spec.name}: the run is ending")

    @property
    def stopping(self) -> bool:
        """Whether the user asked for an orderly end."""
        return self.board.stopping


@dataclass(frozen=True)
class Post:
    """What every worker needs in order to be supervised."""

    board: Board
    index: int
    attempt: int
    mail: connection.Connection
    follow: bool  # whether to die with the thread that started it (PR_SET_PDEATHSIG looks at the thread)


def run_worker(spec: WorkerSpec, packed: Packed, post: Post) -> None:
    """The whole life of a worker process."""
    _tie_to_parent(post)
    os.dup2(2, 1)  # standard output belongs to the results of the run
    _limit(spec)
    outbox = Outbox(post.mail)
    context = Context(spec, post.attempt, post.board, post.index, outbox)
    context.row.attempt, context.row.alive = post.attempt, 1
    try:
        _call_entry(context, packed, outbox)
    except BaseException as error:
        if not _is_orderly(error):
            _report(error, outbox, context)
    context.clock.stop()
    with contextlib.suppress(BaseException):  # the run is over, or nobody is left to tell
        outbox.send(Kind.RETURNED, None, context.watch)


def _call_entry(context: Context, packed: Packed, outbox: Outbox) -> None:
    context.spec = replace(context.spec, payload=packed.open())
    module, _, function = context.spec.entry.partition(":")
    entry = getattr(importlib.import_module(module), function)
    context.watch()
    outbox.send(Kind.ARRIVED, None, context.watch)
    entry(context.spec.payload, context)


def _is_orderly(error: BaseException) -> bool:
    """Whether this is how a worker leaves when it is told to."""
    from sherd.runtime.shared import Closed

    return isinstance(error, Closed)


def _report(error: BaseException, outbox: Outbox, context: Context) -> NoReturn:
    """Tell the parent why, and leave at once: finalisers of a broken process may hang."""
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(BaseException):
        outbox.send(Kind.RAISED, (describe(error), text, isinstance(error, UsageError)), context.watch)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


def describe(error: BaseException) -> str:
    """The cause of a failure: our own errors in their own words, others on one line.

    >>> describe(ValueError("a shape\\n  is wrong"))
    'ValueError: a shape is wrong'
    """
    if isinstance(error, SherdError):
        return str(error)
    if "Traceback (most recent call last):" in str(error):  # a callback's: the cause is raised there
        return str(error).rstrip().splitlines()[-1]
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:500]}" if words else type(error).__name__


def _parent_id() -> int | None:
    parent = multiprocessing.parent_process()
    return parent.pid if parent is not None else os.getppid()


def _tie_to_parent(post: Post) -> None:
    """Nobody outlives the parent, however it ends; and Ctrl-C is the parent's to act on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if post.follow and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != _parent_id():  # it went before we asked to be told
        os._exit(1)
    threading.Thread(target=_guard, args=(post,), name="sherd-guard", daemon=True).start()


def _guard(post: Post) -> None:
    """Stamp the board twice a second; end the process when the pipe that only the parent holds is closed."""
    parent = multiprocessing.parent_process()
    row = post.board.row(post.index)
    row.heartbeat = time.monotonic_ns()
    while parent is not None and not connection.wait([parent.sentinel], _SECONDS_BETWEEN_HEARTBEATS):
        row.heartbeat, row.cpu = time.monotonic_ns(), time.process_time_ns()
    os._exit(1)


def _limit(spec: WorkerSpec) -> None:
    """Cores, priority, threads and variables, before anything is imported that reads them."""
    if spec.cores and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # a wish: a core may have been taken away since the plan was made
            os.sched_setaffinity(0, spec.cores)
    if spec.yields and hasattr(os, "SCHED_IDLE"):
        # Not a matter of how much: of equals, one that was woken waits until the other's share is used up.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(spec.threads)
    many = "true" if spec.threads > 1 else "false"
    flag = f"--xla_cpu_multi_thread_eigen={many}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    os.environ.update(spec.environ)
