"""The life of one worker, without any I/O: what happened comes in, what to do goes out.

    STARTING -> RUNNING <-> STOPPED        (SIGSTOP; back to what it was when it goes on)
        any of these -> DYING              (it raised, or was stopped for too long and is being killed)
        any of these -> RESTARTING -> STARTING      while the budget lasts
        any of these -> FAILED             (the budget is spent, or starting again cannot help)
        any of these -> ENDED              (the entry returned, or the run is closing)

Nothing leaves ENDED or FAILED. The supervisor turns signals, pipes and exit codes into these events and
performs the instructions; every decision is taken here, where it can be tested without a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto


class Phase(Enum):
    """Where in its life a worker is."""

    STARTING = auto()
    RUNNING = auto()
    STOPPED = auto()
    DYING = auto()
    RESTARTING = auto()
    ENDED = auto()
    FAILED = auto()


@dataclass(frozen=True)
class Cause:
    """Why a worker died."""

    text: str
    traceback: str = ""
    usage: bool = False  # the user can fix it, and starting again cannot


# What happened.


@dataclass(frozen=True)
class Started:
    """Its process exists."""


@dataclass(frozen=True)
class Spoke:
    """It is set up, or said something."""


@dataclass(frozen=True)
class Returned:
    """Its entry came to its end."""


@dataclass(frozen=True)
class Raised:
    """Its entry raised; the process is about to leave."""

    cause: Cause


@dataclass(frozen=True)
class Died:
    """Its process is gone."""

    cause: Cause


@dataclass(frozen=True)
class Looked:
    """It was looked at: whether it stands still, and how long we ourselves ran since the look before."""

    still: bool
    seconds: float


@dataclass(frozen=True)
class Closing:
    """The run is ending: from now on a death is nothing to report."""


Happening = Started | Spoke | Returned | Raised | Died | Looked | Closing


# What to do.


@dataclass(frozen=True)
class Bury:
    """Tell those who may be waiting for it."""


@dataclass(frozen=True)
class Spawn:
    """Start its process; answer with `Started` or `Died`."""

    attempt: int


@dataclass(frozen=True)
class Kill:
    """End its process now; `Died` follows."""


@dataclass(frozen=True)
class TellRestarted:
    """The user may want to know."""

    cause: str
    attempt: int


@dataclass(frozen=True)
class TellEnded:
    """It is done."""


@dataclass(frozen=True)
class TellFailed:
    """It is lost, and the run with it."""

    cause: Cause


Instruction = Bury | Spawn | Kill | TellRestarted | TellEnded | TellFailed


@dataclass(frozen=True)
class Life:
    """A worker's state; `step` gives the next one."""

    budget: int = 0
    patience: float = 3.0  # seconds of standing still before it is given up
    phase: Phase = Phase.RESTARTING
    attempt: int = 0
    spoke: bool = False
    still: float = 0.0
    verdict: Cause | None = None  # known before the process is gone
    closing: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing can happen any more.

        >>> Life(phase=Phase.ENDED).over
        True
        """
        return self.phase in (Phase.ENDED, Phase.FAILED)


Step = tuple[Life, list[Instruction]]


def begin(budget: int, patience: float = 3.0) -> Step:
    """A new life and its first instruction."""
    return Life(budget, patience), [Spawn(0)]


def step(life: Life, happening: Happening) -> Step:
    """What a worker becomes when something happens to it, and what is to be done.

    >>> life, _ = begin(budget=1)
    >>> life, _ = step(life, Started())
    >>> life, todo = step(life, Died(Cause("exited with SIGKILL")))
    >>> todo
    [Bury(), TellRestarted(cause='exited with SIGKILL', attempt=1), Spawn(attempt=1)]
    """
    if life.over:
        return life, []
    match happening:
        case Started():
            return _started(life)
        case Spoke():
            return replace(life, phase=_awake(life, spoke=True), spoke=True, still=0.0), []
        case Returned():
            return replace(life, phase=Phase.ENDED), [TellEnded()]
        case Raised(cause):
            return replace(life, phase=Phase.DYING, verdict=life.verdict or cause), []
        case Looked(still, seconds):
            return _looked(life, still, seconds)
        case Died(cause):
            return _died(life, life.verdict or cause)
        case Closing():
            return replace(life, closing=True), []


def _started(life: Life) -> Step:
    if life.phase is not Phase.RESTARTING:
        return life, []
    return replace(life, phase=Phase.STARTING, spoke=False, still=0.0, verdict=None), []


def _awake(life: Life, spoke: bool) -> Phase:
    """The phase of a worker that shows signs of life."""
    if life.phase in (Phase.DYING, Phase.RESTARTING):
        return life.phase
    return Phase.RUNNING if spoke else Phase.STARTING


def _looked(life: Life, still: bool, seconds: float) -> Step:
    if not still:
        return replace(life, phase=_awake(life, life.spoke), still=0.0), []
    if life.phase in (Phase.STARTING, Phase.RUNNING):
        # When it stopped is unknown: the time starts to count with this look.
        return replace(life, phase=Phase.STOPPED, still=0.0), []
    life = replace(life, still=life.still + seconds)
    if life.phase is Phase.RESTARTING or life.still < life.patience:
        return life, []
    verdict = life.verdict or Cause("is stopped (SIGSTOP)")
    return replace(life, phase=Phase.DYING, verdict=verdict), [Kill()]


def _died(life: Life, cause: Cause) -> Step:
    if life.closing:
        return replace(life, phase=Phase.ENDED), [Bury()]
    if cause.usage or life.attempt >= life.budget:
        deaths = life.attempt + 1
        if deaths > 1 and not cause.usage:
            cause = replace(cause, text=f"died {deaths} times; {cause.text}")
        return replace(life, phase=Phase.FAILED, verdict=cause), [Bury(), TellFailed(cause)]
    attempt = life.attempt + 1
    life = replace(life, phase=Phase.RESTARTING, attempt=attempt, verdict=None)
    return life, [Bury(), TellRestarted(cause.text, attempt), Spawn(attempt)]
