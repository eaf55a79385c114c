"""The supervisor: starts the workers, hears them, restarts them by budget, and leaves nobody behind.

It owns no thread. Everything happens inside `events`, which waits for pipes and exits, and once a second
looks whether somebody was stopped. Call it from the thread that called `start`.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, util
from typing import Any

from sherd.errors import UsageError
from sherd.runtime import lifecycle as life
from sherd.runtime.board import Board
from sherd.runtime.child import Child
from sherd.runtime.mail import Kind
from sherd.runtime.parcel import refuse_in_main_import
from sherd.runtime.worker import WorkerSpec

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_AFTER_SIGTERM = 1.0
_LINUX = sys.platform == "linux"
# Where a stopped process cannot be told from a slow one, its heartbeat must have been missing for long.
_STILL_SECONDS = 3.0 if _LINUX else 30.0


@dataclass(frozen=True)
class Event:
    """Something the run should know about one of its workers."""

    worker: WorkerSpec


@dataclass(frozen=True)
class Said(Event):
    """It sent a message."""

    message: Any


@dataclass(frozen=True)
class Restarted(Event):
    """It died and was started again."""

    cause: str
    attempt: int


@dataclass(frozen=True)
class Ended(Event):
    """Its entry returned."""


@dataclass(frozen=True)
class Failed(Event):
    """It died and is not started again."""

    cause: str
    traceback: str = ""  # the worker's own; "" if it was killed
    usage: bool = False  # the cause is a UsageError's message


@dataclass
class _Member:
    """A worker and everything the supervisor knows about it."""

    spec: WorkerSpec
    index: int
    life: life.Life
    child: Child | None = None
    heartbeat: int = -1  # the one last looked at


class Supervisor:
    """Runs a set of workers; `close` (or leaving a `with`) ends them all, whatever happened."""

    def __init__(
        self, specs: Sequence[WorkerSpec], on_death: Callable[[WorkerSpec], None] | None = None
    ) -> None:
        refuse_in_main_import()
        names = [spec.name for spec in specs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"two workers have the same name: {', '.join(twice)}")
        self.board = Board.create(len(specs))
        self._on_death = on_death
        self._queue: list[Event] = []
        self._looked = time.monotonic()
        self._members = [
            _Member(spec, index, life.Life(spec.restarts, _STILL_SECONDS)) for index, spec in enumerate(specs)
        ]
        # The last resort, when we are forgotten or the interpreter ends: before multiprocessing would join
        # (and so wait for) every process that is left.
        self._last_resort = util.Finalize(self, _end_all, (self._members, self.board), exitpriority=100)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def running(self) -> list[WorkerSpec]:
        """The workers that have neither ended nor failed."""
        return [member.spec for member in self._members if not member.life.over]

    def pid(self, name: str) -> int | None:
        """The process id of a worker, None while it has no process."""
        found = {member.spec.name: member.child for member in self._members}[name]
        return found.pid if found is not None else None

    def start(self) -> None:
        """Start every worker, without waiting for any of them to be ready."""
        try:
            for member in self._members:
                member.life, todo = life.begin(member.spec.restarts, _STILL_SECONDS)
                self._obey(member, todo)
        except BaseException:
            self.kill()
            raise
        self._looked = time.monotonic()

    def events(self, timeout: float) -> list[Event]:
        """What happened; waits for the first thing to happen, until the timeout or until nothing can."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic() if self._present and not self._queue else 0.0
            self._turn(left)
            if self._queue or left <= 0.0:
                found, self._queue = self._queue, []
                return found

    def stop(self) -> None:
        """Ask for an orderly end; may be called from a signal handler."""
        self.board.stopping = True

    def close(self, patience: float = 3.0) -> None:
        """Tell all to leave, wait, then insist; afterwards nothing of theirs is left."""
        self.board.closed = True
        for member in self._members:
            member.life, _ = life.step(member.life, life.Closing())
        try:
            self._await_all(patience)
            for _, child in self._present:
                child.signal(signal.SIGTERM)
            self._await_all(_SECONDS_AFTER_SIGTERM)
        finally:
            self.kill()

    def kill(self) -> None:
        """End everything at once."""
        self.board.closed = True
        _end_all(self._members, self.board)
        self._last_resort.cancel()
        for member in self._members:
            member.life, _ = life.step(life.step(member.life, life.Closing())[0], life.Died(life.Cause("")))

    @property
    def _present(self) -> list[tuple[_Member, Child]]:
        """Those whose process is not known to be gone."""
        found = [(member, member.child) for member in self._members if member.child is not None]
        return [(member, child) for member, child in found if child.sentinel >= 0]

    def _await_all(self, seconds: float) -> None:
        """Wait until all have left; what they still say is read, or they would be stuck in saying it."""
        deadline = time.monotonic() + seconds
        while self._present and time.monotonic() < deadline:
            self._turn(deadline - time.monotonic())

    def _turn(self, seconds: float) -> None:
        """Wait for something to happen, or for the time to look around."""
        next_look = self._looked + _SECONDS_BETWEEN_LOOKS
        self._listen(min(seconds, next_look - time.monotonic()))
        if time.monotonic() >= next_look:
            self._look()

    def _listen(self, seconds: float) -> None:
        """Take in every message and every death that is there, waiting for the first one."""
        leaving = {child.sentinel: member for member, child in self._present}
        talking = {child.inbox.fileno(): member for member, child in self._present if child.inbox.open}
        if not leaving:
            return
        ready = {fd for fd in connection.wait([*leaving, *talking], max(seconds, 0.0)) if isinstance(fd, int)}
        gone = [leaving[fd] for fd in ready & leaving.keys()]
        for member in gone:
            self._hear(member, dead=True)
        for member in [talking[fd] for fd in ready & talking.keys()]:
            if not any(member is other for other in gone):
                self._hear(member, dead=False)

    def _hear(self, member: _Member, dead: bool) -> None:
        """Read what a worker says; if it is dead, to the last word."""
        child = member.child
        if child is None:
            return
        for kind, message in child.inbox.read():
            if kind is Kind.SAID:
                self._queue.append(Said(member.spec, message))
            self._feed(member, _happening(kind, message))
        if dead:
            ending = child.end()
            member.child = None
            self.board.row(member.index).bury()
            self._feed(member, life.Died(life.Cause(ending)))

    def _look(self) -> None:
        """See who stands still. Only the time that we ran ourselves counts: Ctrl-Z stops us all alike."""
        now = time.monotonic()
        seconds = min(now - self._looked, 1.5 * _SECONDS_BETWEEN_LOOKS)
        self._looked = now
        for member, child in self._present:
            if child.gone:  # and its sentinel did not tell: it left children behind that hold it open
                self._hear(member, dead=True)
            else:
                self._feed(member, life.Looked(self._stands_still(member, child), seconds))

    def _stands_still(self, member: _Member, child: Child) -> bool:
        if _LINUX:
            return child.state() == "T"
        before, member.heartbeat = member.heartbeat, self.board.row(member.index).heartbeat
        return before == member.heartbeat

    def _feed(self, member: _Member, happening: life.Happening) -> None:
        member.life, todo = life.step(member.life, happening)
        self._obey(member, todo)

    def _obey(self, member: _Member, todo: list[life.Instruction]) -> None:
        for instruction in todo:
            match instruction:
                case life.Bury():
                    if self._on_death is not None:
                        self._on_death(member.spec)
                case life.Spawn(attempt):
                    self._spawn(member, attempt)
                case life.Kill():
                    if member.child is not None:
                        member.child.signal(signal.SIGKILL)
                case life.TellRestarted(cause, attempt):
                    self._queue.append(Restarted(member.spec, cause, attempt))
                case life.TellEnded():
                    self._queue.append(Ended(member.spec))
                case life.TellFailed(cause):
                    self._queue.append(Failed(member.spec, cause.text, cause.traceback, cause.usage))

    def _spawn(self, member: _Member, attempt: int) -> None:
        member.child = Child(member.spec, member.index, attempt, self.board)
        try:
            member.child.launch()
        except OSError as error:  # no more processes allowed, or it was killed before it had read its orders
            member.child = None
            self._feed(member, life.Died(life.Cause(f"could not be started: {error}")))
        else:
            self._feed(member, life.Started())


def _happening(kind: Kind, message: Any) -> life.Happening:
    """A frame as the life cycle sees it."""
    if kind is Kind.RETURNED:
        return life.Returned()
    return life.Raised(life.Cause(*message)) if kind is Kind.RAISED else life.Spoke()


def _end_all(members: list[_Member], board: Board) -> None:
    """No process, no zombie, no shared memory: all are told before any is waited for."""
    for member in members:
        if member.child is not None:
            member.child.signal(signal.SIGKILL)
    for member in members:
        if member.child is not None:
            member.child.end()
            member.child = None
        board.row(member.index).bury()
    board.close()
    board.unlink()
