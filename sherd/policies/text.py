"""A cut as text that a person can read. `docs/graph.md` explains every word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

import jax

from sherd.graph.notation import wrap
from sherd.policies.base import DistributionPolicy, Fragment
from sherd.policies.partition import Fragments
from sherd.policies.project import Projection, projection
from sherd.policies.traffic import Traffic, size, traffic

_WIDTH = 90


def render(cut: Fragments) -> str:
    """The whole cut: its fragments, what crosses between them, and the program of each.

    >>> from sherd.algorithms.ppo import PPO
    >>> from sherd.envs import describe
    >>> from sherd.graph import trace
    >>> from sherd.policies import load_policy
    >>> from sherd.policies.partition import partition
    >>> cut = partition(trace(PPO(), describe("CartPole-v1"), 8), load_policy("MultiLearner")())
    >>> print(render(cut).splitlines()[0])
    cut MultiLearner(learners=2)
    """
    graph, moved = cut.graph, traffic(cut)
    programs = [projection(cut, fragment.name) for fragment in cut.fragments]
    lines = [
        f"cut {describe_policy(cut.policy)}",
        f"of  {graph.name} on {graph.spec.id} ({graph.spec.kind}), {graph.envs} environments, "
        f"{graph.steps_per_iteration()} steps per iteration",
        "",
    ]
    for fragment, program in zip(cut.fragments, programs):
        lines += [*_fragment(cut, fragment, program), ""]
    for one in moved:
        lines += _message(cut, one)
    lines += [_total(moved)]
    for program in programs:
        lines += ["", f"program {program.name}", str(program).rstrip("\n")]
    return "\n".join(lines) + "\n"


def describe_policy(policy: DistributionPolicy) -> str:
    """A policy with its settings.

    >>> from sherd.policies import Fused
    >>> describe_policy(Fused(devices=2))
    'Fused(devices=2)'
    """
    declared = list(type(policy).__annotations__)  # as the author wrote them, which is how they are read
    names = sorted(
        (field.name for field in fields(policy)), key=lambda n: n in declared and declared.index(n)
    )
    settings = ", ".join(f"{name}={getattr(policy, name)!r}" for name in names)
    return f"{policy.name}({settings})" if settings else policy.name


def held_names(program: Projection, owned: bool) -> list[str]:
    """The cells that a fragment owns, or those that it mirrors; empty ones are nobody's concern."""
    full = {cell.name for cell in program.graph.cells if jax.tree.leaves(cell.type)}
    return [one.name for one in program.held if one.owned is owned and one.name in full]


def _fragment(cut: Fragments, fragment: Fragment, program: Projection) -> list[str]:
    nodes = [node for node in cut.graph.nodes() if cut.owner[node.name] == fragment.name]
    share = cut.graph.envs // fragment.replicas
    lines = [f"fragment {fragment.name} x {fragment.replicas}, {fragment.kind}"]
    lines += _listed("roles", dict.fromkeys(node.role for node in nodes))
    lines += _listed("nodes", [node.name for node in nodes])
    lines += _listed("owns", held_names(program, True))
    lines += _listed("mirrors", held_names(program, False))
    if fragment.ring > 1:
        lines.append(f"  ring     {fragment.ring} groups of {_environments(share // fragment.ring)}")
    if fragment.replicas > 1:
        lines.append(f"  each     {_environments(share)}")
    if cut.collective(fragment.name):
        lines.append("  replicas learn together: their reductions see all of them (all-reduce)")
    return lines


def _environments(count: int) -> str:
    return f"{count} environment{'s' if count > 1 else ''}"


def _listed(head: str, words: Iterable[str]) -> list[str]:
    text = ", ".join(words)
    return wrap(f"  {head:<8} {text}", " " * 11, _WIDTH) if text else []


def _message(cut: Fragments, one: Traffic) -> list[str]:
    counts = f"{cut[one.source].replicas} to {cut[one.target].replicas}"
    word = f"reduce {one.name}" if one.how == "all-reduce" else f"message {one.name}"
    among = (
        f"all-reduce among {cut[one.source].replicas}" if one.how == "all-reduce" else f"{one.how} {counts}"
    )
    return [
        f"{word}: {among}, {one.cadence}",
        *_listed("carries", one.parts),
        f"  bytes    {size(one.size)} x {one.times:,} = {size(one.per_iteration)} per iteration",
    ]


def _total(moved: list[Traffic]) -> str:
    if not moved:
        return "total nothing crosses"
    messages = sum(one.times for one in moved)
    return f"total {messages:,} messages, {size(sum(one.per_iteration for one in moved))} per iteration"
