"""The environment ring: a simulator's environments form groups, so that one group is stepped while another's
actions are being inferred."""

from __future__ import annotations

from dataclasses import replace

from sherd.policies.partition import Crossing, Fragments


def form_rings(cut: Fragments) -> Fragments:
    """Split simulator fragments that exchange rows at every step into the policy's number of groups."""
    wanted = getattr(cut.policy, "ring", 1)
    fragments = tuple(
        replace(fragment, ring=_groups(cut.graph.envs // fragment.replicas, wanted))
        if fragment.kind == "environment" and any(_per_step(cut, c, fragment.name) for c in cut.crossings)
        else fragment
        for fragment in cut.fragments
    )
    return replace(cut, fragments=fragments)


def _per_step(cut: Fragments, crossing: Crossing, name: str) -> bool:
    return crossing.how == "rows" and crossing.source == name and crossing.scope != cut.graph.root.index


def _groups(envs: int, wanted: int) -> int:
    """The largest number of equal groups up to what is wanted.

    >>> _groups(8, 2), _groups(8, 3), _groups(1, 2)
    (2, 2, 1)
    """
    return next(count for count in range(max(wanted, 1), 0, -1) if envs % count == 0)
