"""Messages: fewer of them, sent early, awaited late."""

from __future__ import annotations

from dataclasses import replace

from sherd.graph.ir import Scope
from sherd.policies.partition import Crossing, Fragments
from sherd.policies.places import Places


def coalesce(cut: Fragments) -> Fragments:
    """One message for each boundary and moment, never one for each tensor.

    An earlier message may wait for a later one over the same boundary if the receiver does not use it before
    that one arrives: waiting then changes nothing but the number of messages.
    """
    merged: list[Crossing] = []
    for crossing in sorted(cut.crossings, key=lambda c: c.sent):
        for index, other in enumerate(merged):
            if _same_boundary(crossing, other) and other.first_use > crossing.sent:
                merged[index] = _join(other, crossing)
                break
        else:
            merged.append(crossing)
    return replace(cut, crossings=tuple(_named(merged)))


def _same_boundary(one: Crossing, other: Crossing) -> bool:
    def key(c: Crossing) -> tuple[object, ...]:
        # What refreshes a mirror is also sent before the first iteration: it has a message of its own.
        return c.source, c.target, c.how, c.scope, bool(c.refreshes)

    return key(one) == key(other)


def _join(first: Crossing, second: Crossing) -> Crossing:
    shift, sent = len(first.parts), max(first.sent, second.sent)
    received, used = max(first.received, second.received), min(first.first_use, second.first_use)
    # One may have been put off for longer than the other can wait.
    later = tuple((number + shift, refresh) for number, refresh in second.refreshes)
    return replace(
        first,
        sent=sent,
        received=received if received < used else sent,
        first_use=used,
        parts=first.parts + second.parts,
        refreshes=first.refreshes + later,
    )


def _named(crossings: list[Crossing]) -> list[Crossing]:
    """Short names, since a message no longer stands for one value."""
    counts: dict[str, int] = {}
    named = []
    for crossing in sorted(crossings, key=lambda c: (c.sent, c.source, c.target, c.how)):
        boundary = f"{crossing.source}>{crossing.target}"
        counts[boundary] = counts.get(boundary, 0) + 1
        named.append(replace(crossing, name=f"{boundary}#{counts[boundary]}"))
    return named


def prefetch(cut: Fragments) -> Fragments:
    """Wait as late as possible: a message is sent as soon as it is known and taken just before its use."""
    places = cut.places()
    scopes = {scope.index: scope for scope in places.scopes(cut.graph.root)}
    late = [replace(c, received=_latest(places, scopes[c.scope], c)) for c in cut.crossings]
    return replace(cut, crossings=tuple(late))


def _latest(places: Places, scope: Scope, crossing: Crossing) -> int:
    keys = [item.index if isinstance(item, Scope) else item.output for item in scope.body]
    points = [places.positions[key] for key in keys]
    return max((p for p in points if crossing.sent <= p < crossing.first_use), default=crossing.received)
