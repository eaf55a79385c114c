"""How each fragment of a run fares, and which one holds the others up.

Every fragment divides its time into three: *busy* (it computes), *waiting* (for what it needs) and *sending*
(it hands over what it made, or cannot because the queue is full). The bottleneck is the fragment that is busy
while others wait or cannot send; a full queue in front of it is the second sign. If nobody stands out, the
sentence says so: a wrong culprit costs a reader more than none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_CLEAR = 0.15  # by how much of its time the bottleneck must be busier than the next fragment
_FULL_QUEUE = 0.9
_HARDLY_BUSY = 0.5
_HARDLY_FREE = 0.5  # of a core
_MUCH_SENDING = 0.3
_WORTH_SAYING = 0.2

_MORE = {"environment": "more environment processes", "actor": "more actors"}
_ADVICE = {
    "policy": "more policy workers or a faster device for them would help",
    "learner": "a faster device or a policy with several learners would help, more of the others would not",
    "server": "fewer and larger requests to it would help",
    "main": "a distribution policy that leaves less to the main process would help",
}
_ADVICE_TO_LEARNERS = "faster devices or more learners would help, more of the others would not"


@dataclass(frozen=True)
class FragmentStatus:
    """One fragment since the last picture; shares of time are averaged over its replicas."""

    name: str
    """The fragment's name in the plan, e.g. "actors"."""
    kind: str
    """What it mainly does: environment, actor, policy, learner, server or main."""
    replicas: int
    """How many processes run it."""
    per_second: float
    """How fast all its replicas work together, in `unit`."""
    unit: str
    """steps/s, updates/s, requests/s or iterations/s."""
    busy: float
    """Share of time in which it computes, 0 to 1."""
    waiting: float
    """Share of time in which it waits for what it needs, 0 to 1."""
    sending: float
    """Share of time in which it hands over, or waits for room to hand over, 0 to 1."""
    queue: float | None = None
    """Fill of the queues that lead into it, 0 to 1; None: there are none."""
    restarts: int = 0
    """How often one of its replicas was restarted so far."""
    staleness: float | None = None
    """Mean age, in parameter versions, of what its samples were made with; None: not known."""
    cores: float | None = None
    """Processors in use, over all replicas: who sleeps in a step is busy, too; None: not known."""


def bottleneck(
    statuses: Sequence[FragmentStatus], cores: int | None = None, idle: float | None = None
) -> str:
    """The bottleneck and what to do about it, in one sentence; `cores` of the machine, if it is one machine.

    `idle` is how many of them nobody used, which is less than the run left over if other programs ran too.

    >>> actors = FragmentStatus("actors", "actor", 2, 12_300.0, "steps/s", 0.97, 0.0, 0.03)
    >>> learner = FragmentStatus("learner", "learner", 1, 6.0, "updates/s", 0.29, 0.71, 0.0)
    >>> for part in bottleneck([actors, learner]).split("): "):
    ...     print(part)
    bottleneck: actors (2 replicas busy 97 % of the time, learner waits 71 %
    more actors would help, if there are cores for them
    """
    if not statuses:
        return "no clear bottleneck: the run was too short to be measured"
    if len(statuses) == 1:
        return _alone(statuses[0])
    most = max(_share(status.busy) for status in statuses)
    if most < _HARDLY_BUSY:
        return _nobody_busy(statuses, most)
    suspects = [status for status in statuses if most - _share(status.busy) < _CLEAR]
    if len(suspects) > 1:
        # Among the equally busy, it is the one that work piles up before.
        suspects = [status for status in suspects if _full(status)] or suspects
    if len(suspects) > 1:
        return _equally_busy(suspects)
    return _one_busy(suspects[0], statuses, cores, idle)


def average(pictures: Sequence[Sequence[FragmentStatus]]) -> list[FragmentStatus]:
    """The pictures of a whole run as one: rates and shares averaged, counts as they were last.

    >>> slow = FragmentStatus("actors", "actor", 2, 10.0, "steps/s", 1.0, 0.0, 0.0, queue=None, restarts=0)
    >>> fast = FragmentStatus("actors", "actor", 2, 30.0, "steps/s", 0.5, 0.5, 0.0, queue=0.5, restarts=1)
    >>> [mean] = average([[slow], [fast]])
    >>> mean.per_second, mean.busy, mean.queue, mean.restarts
    (20.0, 0.75, 0.5, 1)
    """
    found: dict[str, list[FragmentStatus]] = {}
    for picture in pictures:
        for status in picture:
            found.setdefault(status.name, []).append(status)
    return [_average_of(same) for same in found.values()]


def _average_of(same: list[FragmentStatus]) -> FragmentStatus:
    return replace(
        same[-1],
        per_second=_mean(status.per_second for status in same) or 0.0,
        busy=_mean(status.busy for status in same) or 0.0,
        waiting=_mean(status.waiting for status in same) or 0.0,
        sending=_mean(status.sending for status in same) or 0.0,
        queue=_mean(status.queue for status in same),
        staleness=_mean(status.staleness for status in same),
        cores=_mean(status.cores for status in same),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of what is known; None if nothing is."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None


def _share(value: float) -> float:
    """A share of time that can be trusted: 0 where nothing was measured."""
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def _full(status: FragmentStatus) -> bool:
    return status.queue is not None and status.queue >= _FULL_QUEUE


def _alone(status: FragmentStatus) -> str:
    if status.replicas == 1:
        return (
            f"everything ran in one process ({_busy(status)} of the time): it waits for no other; "
            "a distribution policy of several processes may use more cores"
        )
    return (
        f"no clear bottleneck: {status.replicas} replicas of {status.name} share all the work "
        f"(busy {_percent(status.busy)}, waiting for one another {_percent(status.waiting)} of the time)"
    )


def _nobody_busy(statuses: Sequence[FragmentStatus], most: float) -> str:
    sender = max(statuses, key=lambda status: _share(status.sending))
    if _share(sender.sending) >= max(_MUCH_SENDING, most):
        verb = "spends" if sender.replicas == 1 else "spend"
        return (
            f"bottleneck: sending ({sender.name} {verb} {_percent(sender.sending)} of the time on it, "
            f"no fragment is busy more than {_percent(most)}): fewer and larger messages would help"
        )
    signs = _held_up(statuses)
    return (
        f"no clear bottleneck: no fragment is busy more than {_percent(most)} of the time"
        f"{' (' + signs[0] + ')' if signs else ''}, they wait for one another: "
        "more work in each message would help, e.g. more environments"
    )


def _one_busy(
    status: FragmentStatus, statuses: Sequence[FragmentStatus], cores: int | None, idle: float | None
) -> str:
    signs = [_busy(status) + " of the time"]
    if _full(status):
        signs.append("queues into it full")
    signs += _held_up(other for other in statuses if other is not status)
    return f"bottleneck: {status.name} ({', '.join(signs)}): {_advice(status, statuses, cores, idle)}"


def _equally_busy(suspects: Sequence[FragmentStatus]) -> str:
    named = [f"{status.name} ({_busy(status)})" for status in suspects]
    all_of_them = f"{', '.join(named[:-1])} and {named[-1]}"
    if sum(_share(status.busy) for status in suspects) < 1.0 + _CLEAR:
        return f"no clear bottleneck: {all_of_them} take turns, and would be faster if they could overlap"
    return f"no clear bottleneck: {all_of_them} are equally loaded, so that only faster hardware would help"


def _held_up(others: Iterable[FragmentStatus]) -> list[str]:
    """The fragment that loses most time to others, if it is much; main only if there is no other."""
    known = list(others)
    known = [status for status in known if status.kind != "main"] or known
    worst = max(known, key=lambda status: max(_share(status.waiting), _share(status.sending)))
    waiting, sending = _share(worst.waiting), _share(worst.sending)
    if max(waiting, sending) < _WORTH_SAYING:
        return []
    one = worst.replicas == 1 and not worst.name.endswith("s")
    if waiting >= sending:
        return [f"{worst.name} {'waits' if one else 'wait'} {_percent(waiting)}"]
    return [f"{worst.name} {'is' if one else 'are'} held up sending {_percent(sending)}"]


def _advice(
    status: FragmentStatus, statuses: Sequence[FragmentStatus], cores: int | None, idle: float | None
) -> str:
    if status.kind not in _MORE:
        if status.kind == "learner" and status.replicas > 1:
            return _ADVICE_TO_LEARNERS
        return _ADVICE.get(status.kind, "more replicas of it would help, if it can be replicated")
    more = _MORE[status.kind]
    if cores is None:
        return f"{more} would help, if there are cores for them"
    used = sum(_cores(other) for other in statuses)
    if used > cores - _HARDLY_FREE:
        return f"all {cores} cores are in use, so {more} would help only on a larger machine"
    free = cores - used if idle is None else min(cores - used, idle)
    if free < _HARDLY_FREE:
        others = f"about {cores - used - max(free, 0.0):.1f} of them by other programs"
        return f"all {cores} cores are in use, {others}, so {more} would help only without those"
    return f"{more} would help, about {free:.1f} of {cores} cores are free"


def _cores(status: FragmentStatus) -> float:
    return status.cores if status.cores is not None else _share(status.busy) * status.replicas


def _busy(status: FragmentStatus) -> str:
    replicas = f"{status.replicas} replicas " if status.replicas != 1 else ""
    return f"{replicas}busy {_percent(status.busy)}"


def _percent(share: float) -> str:
    return f"{100 * _share(share):.0f} %"
