"""Fragments that share a process need no messages between them, and their replicas can work as one batch."""

from __future__ import annotations

from dataclasses import replace

from sherd.policies.base import Fragment
from sherd.policies.partition import Fragments, project


def batch_replicas(cut: Fragments) -> Fragments:
    """Fragment fusion: replicas in one place become one fragment that works on all their environments."""
    single = tuple(replace(fragment, replicas=1) for fragment in cut.fragments)
    return project(cut.graph, cut.policy, single, cut.owner)


def merge_colocated(cut: Fragments) -> Fragments:
    """Fragments in one place become one, which owns the nodes of all; what crossed between them is local."""
    names = "+".join(fragment.name for fragment in cut.fragments)
    roles = tuple(role for fragment in cut.fragments for role in fragment.roles)
    counts = {fragment.replicas for fragment in cut.fragments}
    if len(counts) > 1:
        return cut  # they do not hold the same environments
    whole = Fragment(names, roles, counts.pop())
    return project(cut.graph, cut.policy, (whole,), dict.fromkeys(cut.owner, names))
