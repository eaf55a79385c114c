"""`sherd graph`: what one training iteration computes, as text or as a drawing."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from sherd.algorithms import load_algorithm
from sherd.cli.arguments import Section, parse, require, take_positionals, value_of, wants_help
from sherd.envs import describe
from sherd.errors import SherdWarning, UsageError
from sherd.graph import Graph, check, trace
from sherd.policies import DistributionPolicy, load_policy

USAGE = "sherd graph ALGORITHM ENV"
DESCRIPTION = """\
Trace one training iteration of an algorithm on an environment, check it, and print it. Nothing is trained."""


@dataclass(frozen=True)
class Options:
    """What to trace, and where to put it."""

    envs: int = 8
    """How many environments are stepped in parallel."""
    policy: str | None = None
    """Also say which fragment of this distribution policy owns which node."""
    svg: Path | None = None
    """Draw the graph into this file instead of printing it."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show tracebacks and the warnings of all libraries."""


def run(arguments: list[str]) -> int:
    """Run the command."""
    found, flags = take_positionals(arguments, 2)
    if not wants_help(flags):
        require(found, ("ALGORITHM", "ENV"), f"{USAGE} [flags]   e.g. sherd graph ppo CartPole-v1")
    algorithm = load_algorithm(found[0] if found else "ppo")
    policy = load_policy(value_of("--policy", flags) or "Single")
    sections = [
        Section("options", Options),
        Section("policy", policy, "policy"),
        Section("algo", algorithm, "algo"),
    ]
    given = parse(sections, flags, USAGE, DESCRIPTION)
    options: Options = given.options
    if options.envs < 1:
        raise UsageError(f"envs is {options.envs}, but must be at least 1")
    spec = describe(found[1])
    given.policy.require(spec, options.envs)
    graph = check(trace(given.algo, spec, options.envs))
    for text in graph.warnings:
        warnings.warn(text, SherdWarning, stacklevel=1)
    if options.svg:
        _draw(graph, options.svg)
    else:
        print(graph, end="")
        if options.policy:
            print(fragments(graph, given.policy), end="")
    return 0


def fragments(graph: Graph, policy: DistributionPolicy) -> str:
    """Which fragment owns which nodes, a line each."""
    owned: dict[str, list[str]] = {}
    for node in graph.nodes():
        owned.setdefault(policy.fragments[node.role], []).append(node.name)
    lines = [f"fragment {name} of {policy.name}: {', '.join(nodes)}" for name, nodes in owned.items()]
    return "\n".join(["", *lines, ""])


def _draw(graph: Graph, file: Path) -> None:
    from sherd.graph.draw import draw

    try:
        file.write_text(draw(graph), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {file}: {error.strerror}\n  fix: choose another --svg FILE"
        ) from error
    print(f"drawn to {file}")
