"""The environment ring: a simulator's environments form groups, so that one group is stepped while another's
actions are being inferred."""

from __future__ import annotations

from dataclasses import replace

from sherd.policies.base import Fragment
from sherd.policies.partition import Fragments


def form_rings(cut: Fragments) -> Fragments:
    """Split simulator fragments that exchange rows at every step into the policy's number of groups."""
    return replace(cut, fragments=tuple(replace(f, ring=_groups(cut, f)) for f in cut.fragments))


def _groups(cut: Fragments, fragment: Fragment) -> int:
    """The largest number of equal groups up to what is wanted, each of which has one receiver."""
    sent = [c for c in cut.crossings if c.how == "rows" and c.source == fragment.name]
    if fragment.kind != "environment" or all(c.scope == cut.graph.root.index for c in sent):
        return 1
    envs = cut.graph.envs // fragment.replicas
    shares = [cut.graph.envs // cut[crossing.target].replicas for crossing in sent]
    counts = [n for n in range(1, envs + 1) if envs % n == 0 and all(s % (envs // n) == 0 for s in shares)]
    wanted = getattr(cut.policy, "ring", 1)
    return max((count for count in counts if count <= wanted), default=min(counts))
