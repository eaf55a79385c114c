"""A worker's process, seen from the parent: start it, listen to it, look at it, bury it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from sherd.errors import UsageError
from sherd.runtime.board import Board
from sherd.runtime.mail import Inbox
from sherd.runtime.parcel import Parcel, Unpackable, blank_main, main_module
from sherd.runtime.worker import Post, WorkerSpec, run_worker

_SPAWN = multiprocessing.get_context("spawn")


class Child:
    """One attempt of one worker. Kept by its owner before `launch`, so that nothing started can be lost."""

    def __init__(self, spec: WorkerSpec, index: int, attempt: int, board: Board) -> None:
        self.spec = spec
        self._post = (board, index, attempt)
        self._process: BaseProcess | None = None  # known once it was started well
        self._parcel: Parcel | None = None
        self.inbox = Inbox()

    def launch(self) -> None:
        """Start the process; UsageError if what it is to be given cannot be sent."""
        try:
            self._launch(Parcel(self.spec.payload))
        except Unpackable:
            try:
                self._launch(Parcel(self.spec.payload, main=sys.modules["__main__"]))
            except Unpackable as error:
                raise UsageError(
                    f"{self.spec.name}: what it works with cannot be sent to another process.\n"
                    f"  cause: {error}\n"
                    "  fix: define functions and classes at the top level of a module, and hand over no "
                    "lambdas, open files or locks"
                ) from error

    def _launch(self, parcel: Parcel) -> None:
        self._parcel = parcel
        reader, writer = _SPAWN.Pipe(duplex=False)
        # The kernel sends PR_SET_PDEATHSIG when the thread that started a child ends, not the process.
        follow = threading.current_thread() is threading.main_thread()
        post = Post(*self._post, mail=writer, follow=follow)
        spec = replace(self.spec, payload=None)
        process = _SPAWN.Process(target=run_worker, args=(spec, parcel, post), name=spec.name)
        try:
            self.inbox = Inbox(reader)
            with _interrupts_held(), main_module(blank_main()):
                process.start()
            self._process = process
        except BaseException:
            self.end()
            raise
        finally:
            parcel.close()
            writer.close()  # held by the worker alone, its end is the pipe's end

    @property
    def pid(self) -> int | None:
        """Its process id; None before there is a process, and after `end`."""
        return getattr(self._popen, "pid", None)

    @property
    def _popen(self) -> Any:
        return self._parcel.popen if self._parcel is not None else None

    @property
    def gone(self) -> bool:
        """Whether the process has ended; true even if children of its own hold its sentinel open."""
        return self.pid is None or self._popen.poll() is not None

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process is gone; -1 while there is none."""
        return self._process.sentinel if self._process is not None else -1

    def state(self) -> str:
        """The kernel's letter for what the process does (R, S, T, Z, ...); '' where it cannot be known."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return chr(file.read().rpartition(b") ")[2][0])
        except (OSError, IndexError):
            return ""

    def signal(self, number: int) -> None:
        """Send a signal, if there is still somebody to get it."""
        if self.pid is not None and not self.gone:  # once gone, the id may be somebody else's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self) -> str:
        """Make sure that the process is gone, leave no zombie, and say how it ended."""
        self.signal(signal.SIGKILL)  # changes nothing for one that is on its way out
        self.inbox.close()
        code = None
        if self._process is not None:
            self._process.join()
            code = self._process.exitcode
            with contextlib.suppress(ValueError):  # somebody else collected its exit code
                self._process.close()
        elif self.pid is not None:
            code = self._popen.wait()
        self._process = self._parcel = None
        return _ending(code)


def _ending(code: int | None) -> str:
    """An exit code in words."""
    if code is None:
        return "ended in an unknown way"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"exited with {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal
        return f"exited with signal {-code}"


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start processes with SIGINT blocked: Ctrl-C reaches the whole group, but only the parent acts on it."""
    resource_tracker.ensure_running()  # would unblock SIGINT if it were started below
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
